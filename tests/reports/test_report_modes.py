"""The page of tensor modes: rates over jobs, the fastest shape of each mode, and what the paper prints."""

from pathlib import Path

import pytest
from test_report_reproduction import evidence
from test_reproduction_modes import PAPER, jobs

from reports.frames.tensor_modes import ranked, settings
from reports.pages.tensor_modes import STUDY


def test_modes_of_one_machine_and_size_stand_together_beside_the_published_ones(tmp_path: Path) -> None:
    results = jobs(PAPER, system="system-iv") + jobs({"2.5d": 1.0}, system="system-iv", grid="1x1x2x2", first=3)
    results += jobs({"1d": 9.0, "3d": 6.0}, system="system-iv", ranks=8, grid="8x1x1x1")
    frames = evidence(tmp_path, results)
    eight, four = settings(frames)
    assert [int(one.first["ranks"]) for one in (eight, four)] == [8, 4]
    assert ranked(four) == ("2.5D", "2D", "1D")
    assert ranked(eight) == ("1D", "3D")
    assert list(four.table["mode"]) == ["1D", "2D", "2.5D", "2.5D"]
    assert list(four.table["published"].dropna()) == [5.06, 6.18, 6.73, 6.73]
    assert list(four.table["over_1d"]) == pytest.approx([1, 6.18 / 5.06, 6.73 / 5.06, 1 / 5.06], rel=1e-3)
    assert list(four.table["jobs"]) == [3] * 4
    row = four.table.iloc[1]
    assert row["images_per_s_low"] < row["images_per_s"] < row["images_per_s_high"]
    assert row["moved_bytes"] > 0


def test_the_page_names_the_fastest_and_says_what_is_missing(tmp_path: Path) -> None:
    page = STUDY.page(evidence(tmp_path / "full", jobs(PAPER, system="system-iv")))
    assert "2.5D on 4 of system-iv" in page.headline
    one_job = evidence(tmp_path / "one", jobs(PAPER, system="system-iv")[::3])
    assert STUDY.page(one_job).headline == page.headline
    empty = STUDY.page(evidence(tmp_path / "empty"))
    assert empty.empty
