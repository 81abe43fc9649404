"""Two linear layers: Table 1's formulas beside what moves, memory over that of 1D, and verdicts on both."""

from pathlib import Path

import pytest
from sample_layers import BY_BATCH, BY_WIDTH, jobs, layers
from test_report_reproduction import claim, evidence, verdicts

from reports.figures.layers import blocks
from reports.frames.frame import Frames
from reports.page import Figures, Table
from reports.pages.tensor_modes import STUDY

PAPER = {"2.5d": 0.56, "3d": 0.35}
"""Memory by that of 1D with a batch of 512, in the paper."""
SHARES, AT_ANY_BATCH = "batch of 512 on 8 GPUs", "less than 1D at any batch"


def ranges(folder: Path, system: str, by_mode: dict[str, float], shapes: tuple[tuple[int, int], ...]) -> Frames:
    """1D, and modes that take so many times its memory, on 4 and 8 devices."""
    results = jobs([("1d", "4x1x1x1"), ("1d", "8x1x1x1")], system=system, shapes=shapes)
    grids = {"2d": ["2x2x1x1"], "2.5d": ["2x2x1x1", "2x2x1x2"], "3d": ["2x2x2x1"]}
    for place, (mode, peak) in enumerate(by_mode.items()):
        layouts = [(mode, grid) for grid in grids[mode]]
        results += jobs(layouts, first=10 * (place + 1), system=system, shapes=shapes, peak=peak)
    return evidence(folder, results)


def test_the_table_holds_for_1d_and_2d_and_counts_a_part_of_the_others(tmp_path: Path) -> None:
    frames = evidence(tmp_path, jobs())
    table = frames.layers.drop_duplicates("grid").set_index("grid")
    by_table = table["moved_elements"] / table["table_elements"]
    assert by_table["4x1x1x1"] == by_table["8x8x1x1"] == pytest.approx(1)
    assert by_table["4x4x4x1"] == pytest.approx(4), "a cube has four planes"
    assert by_table["4x4x1x4"] == pytest.approx(195 / 47, rel=0.01)
    assert verdicts(claim("colossal-ai", "Table 1", "1D and 2D"), frames) == [("local", "reproduces", False)] * 2
    assert verdicts(claim("colossal-ai", "Table 1", "2.5D and 3D"), frames) == [("local", "differs", False)] * 2
    assert verdicts(claim("colossal-ai", "Fig. 5"), frames) == [("local", "reproduces", False)] * 3


def test_a_mode_that_moves_more_than_1d_is_found(tmp_path: Path) -> None:
    frames = evidence(tmp_path, jobs(moved=1.2))
    assert {one for _, one, _ in verdicts(claim("colossal-ai", "Table 1", "1D and 2D"), frames)} == {"differs"}
    frames = evidence(tmp_path / "2d", jobs([("1d", "64x1x1x1")]) + jobs([("2d", "8x8x1x1")], first=9, moved=99))
    assert verdicts(claim("colossal-ai", "Fig. 5"), frames) == [("local", "differs", False)]


def test_one_job_tells_nothing(tmp_path: Path) -> None:
    frames = evidence(tmp_path, jobs(count=1))
    assert {one for _, one, _ in verdicts(claim("colossal-ai", "Table 1", "1D and 2D"), frames)} == {"can't tell"}


@pytest.mark.parametrize(
    ("by", "expected"), [(1.0, "reproduces"), (1.3, "differs"), (0.6, "better")], ids=["as printed", "more", "less"]
)
def test_shares_of_1d_are_judged_on_the_papers_machine(by: float, expected: str, tmp_path: Path) -> None:
    frames = ranges(tmp_path, "system-i", {mode: by * part for mode, part in PAPER.items()}, BY_BATCH)
    assert verdicts(claim("colossal-ai", "Fig. 8", SHARES), frames) == [("system-i", expected, False)] * 2


@pytest.mark.parametrize(("part", "expected"), [(0.9, "reproduces"), (1.1, "differs")])
def test_elsewhere_it_counts_who_takes_less(part: float, expected: str, tmp_path: Path) -> None:
    frames = ranges(tmp_path, "local", dict.fromkeys(("2d", "2.5d", "3d"), part), BY_BATCH)
    assert verdicts(claim("colossal-ai", "Fig. 8", SHARES), frames) == [("local", expected, True)] * 2
    assert verdicts(claim("colossal-ai", "Fig. 8", AT_ANY_BATCH), frames) == [("local", expected, True)] * 3
    assert verdicts(claim("colossal-ai", "Fig. 8", "less than 1D at any hidden size"), frames) == []


def test_a_range_in_which_the_order_turns_is_undecided(tmp_path: Path) -> None:
    results = jobs([("1d", "4x1x1x1")], shapes=BY_WIDTH)
    for job, peaks in enumerate(((0.5, 2.0), (0.5, 2.0))):
        parts = [
            layers("2d", "2x2x1x1", shapes=[shape], peak=peak) for shape, peak in zip(BY_WIDTH, peaks, strict=True)
        ]
        both = tuple(one.layers[0] for one in parts)
        results.append(layers("2d", "2x2x1x1", job=9 + job).model_copy(update={"layers": both}))
    found = verdicts(claim("colossal-ai", "Fig. 8", "less than 1D at any hidden size"), evidence(tmp_path, results))
    assert found == [("local", "can't tell", True)]


def test_the_page_draws_what_moves_and_both_ranges(tmp_path: Path) -> None:
    four = jobs([("1d", "8x1x1x1"), ("3d", "2x2x2x1")], first=40, shapes=BY_BATCH)
    wide = jobs([("1d", "8x1x1x1"), ("3d", "2x2x2x1")], first=50, shapes=BY_WIDTH, peak=0.5)
    frames = evidence(tmp_path, jobs() + four + wide)
    figures, table = blocks(frames.layers, frames.runs)
    assert isinstance(figures, Figures)
    assert isinstance(table, Table)
    assert [one.name for one in figures.figures] == ["layers-moved", "layers-batch", "layers-hidden"]
    assert len(table.data) == 10 + 4 + 4, "each shape of a layout once, whatever its jobs"
    cubes = table.data[(table.data["grid"] == "2x2x2x1") & (table.data["batch"] == 512)]
    assert cubes["of_1d"].tolist() == pytest.approx([1.0])
    page = STUDY.page(frames)
    assert not page.empty
    assert not blocks(frames.layers.head(0), frames.runs)
