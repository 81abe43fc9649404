"""Reports of many systems: each folded, listed and named in tables, and one figure that compares them."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from reading import built
from sample_results import LOCAL, gemm, save, train
from sample_systems import LONGEST, MANY, MARKUP, names, of_system, systems
from test_report_pages import read, visible

from engine.result.schema import Result
from reports.columns import columns_of, failures
from reports.figures.compare import compared
from reports.frames.frame import frames
from reports.frames.points import points
from reports.page import FEW, Figure, Figures, PageSection, Paragraph, Table
from reports.pages import energy
from reports.read.load import load
from reports.read.peaks import with_peaks

OF_ONE_SYSTEM = 10


def test_every_system_has_a_folded_part_of_its_own_and_a_figure_in_it(many_site: Path) -> None:
    html = (many_site / "peak.html").read_text()
    summaries = re.findall(r"<summary><h2>(.*?)</h2> <span>(.*?)</span>", html)
    assert len(summaries) == MANY == html.count("<details>") == html.count("<svg")
    assert all("Tflop/s" in gist for _, gist in summaries)
    seen = visible(many_site / "peak.html")
    assert [name for name in names(MANY) if f"{name}, gpu, one" not in seen] == []
    assert "40 sections, folded" in seen
    anchors = [attributes["id"] for _, attributes in read(many_site / "peak.html").tags if "id" in attributes]
    assert len([anchor for anchor in anchors if anchor.startswith("series-")]) == MANY
    assert len(html) < 2e6


def test_names_with_markup_and_of_sixty_letters_are_shown_as_they_are(many_site: Path) -> None:
    assert f"<b>{MARKUP[3:7]}</b>" not in (many_site / "peak.html").read_text()
    assert MARKUP in visible(many_site / "peak.html")
    assert LONGEST in visible(many_site / "index.html")


def test_the_first_page_lists_many_systems(many_site: Path) -> None:
    rows = list(csv.DictReader((many_site / "data" / "index-systems.csv").open()))
    assert {row["system"] for row in rows} == {*names(MANY)}
    assert {row["jobs"] for row in rows} == {"1", "6"}
    assert rows[0]["study"] == "peak"


def test_a_few_systems_are_not_folded(many_site: Path) -> None:
    assert "<details>" not in (many_site / "weak_scaling.html").read_text()


def test_many_partitions_and_series_of_one_system_are_folded_too(tmp_path: Path) -> None:
    built(tmp_path, [gemm(partition=f"p{n}", job=n) for n in range(OF_ONE_SYSTEM)])
    assert (tmp_path / "site" / "peak.html").read_text().count("<details>") == OF_ONE_SYSTEM > FEW
    assert not (tmp_path / "site" / "data" / "index-systems.csv").exists()


def test_series_beyond_the_last_part_are_in_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "MOST_SECTIONS", 1)
    save([run for n in (0, 3) for run in of_system(f"s{n}", n, jobs=1, every_study=False)], tmp_path)
    page = energy.STUDY.page(frames(load([tmp_path]).runs))
    (rest,) = [section for section in page.sections if section.title == "Further series"]
    (table,) = rest.blocks
    assert isinstance(table, Table)
    assert set(table.csv["system"]) == {"s3"}


def test_tables_of_several_systems_begin_with_the_system_and_those_of_one_are_without(tmp_path: Path) -> None:
    save([train(system=name, job=n, failure="no") for n, name in enumerate("ab")], tmp_path)
    runs = frames(load([tmp_path]).runs).runs
    keys = [[column.key for column in failures(rows, "x")[0].columns] for rows in (runs, runs[:1])]
    assert keys[0] == ["system", *keys[1]]
    assert [column.key for column in columns_of("system", "model system grid")] == ["system", "model", "grid"]


@pytest.mark.weekly
def test_every_page_of_forty_systems_shows_all_of_them_and_stays_of_a_sensible_size(tmp_path: Path) -> None:
    built(tmp_path, systems(MANY))
    for page in ("weak_scaling", "strong_scaling", "peak", "overlap", "pipeline"):
        html = (tmp_path / "site" / f"{page}.html").read_text()
        assert html.count("<details>") == MANY
        assert len(html) < 8e6


def points_of(results: Sequence[Result], folder: Path) -> pd.DataFrame:
    save(list(results), folder)
    found = frames(load([folder]).runs)
    return points(with_peaks(found.runs))


def figure_of(sections: Sequence[PageSection]) -> Figure:
    """The figure that compares systems, which is the only one."""
    (section,) = sections
    (figure,) = [one for block in section.blocks if isinstance(block, Figures) for one in block.figures]
    return figure


def test_one_figure_compares_two_systems(many_site: Path) -> None:
    rows = list(csv.DictReader((many_site / "data" / "weak_scaling-compared-rates.csv").open()))
    assert {row["system"] for row in rows} == {"perlmutter", LONGEST}
    assert {(row["model"], row["ranks"]) for row in rows} == {("gpt-80b", "8192")}
    assert "What a device reaches" in visible(many_site / "weak_scaling.html")
    assert not (many_site / "data" / "strong_scaling-compared-rates.csv").exists()


def test_one_figure_compares_many_systems_the_fastest_on_top_with_peaks_and_published_marks(tmp_path: Path) -> None:
    table = points_of(systems(MANY, jobs=2, every_study=False), tmp_path)
    figure = figure_of(compared(table))
    rows = figure.csv
    assert len(rows) == MANY
    assert rows["rate"].is_monotonic_decreasing
    assert (rows["rate_low"] < rows["rate"]).all()
    assert (rows["rate_high"] > rows["rate"]).all()
    assert rows[["model", "dtype", "ranks", "batch_size"]].drop_duplicates().shape[0] == 1
    assert (rows["rate"] / rows["advertised"]).tolist() == pytest.approx(rows["hfu"].tolist(), nan_ok=True)
    theirs = rows.dropna(subset="rate_published").set_index("system")["rate_published"]
    assert theirs["frontier"] * rows["ranks"].iloc[0] == pytest.approx(145.7e15, rel=0.01)
    texts = [text.get_text() for text in figure.drawing.axes[0].get_yticklabels()]
    assert len(set(texts)) == MANY
    assert [name for name in names(MANY) if name != LONGEST and name not in texts] == []


def test_systems_that_did_other_work_are_compared_with_their_like_or_named(tmp_path: Path) -> None:
    results = [
        train(system=name, job=n, dtype=dtype)
        for n, (name, dtype) in enumerate(
            [("a", "bf16"), ("b", "bf16"), ("c", "bf16"), ("g", "bf16"), ("d", "fp16"), ("e", "fp16"), ("f", "fp32")]
        )
    ]
    results.append(train(system="a", dtype="fp16", job=10, time_s=9.0))
    (section,) = compared(points_of(results, tmp_path))
    rows = figure_of([section]).csv
    assert dict(zip(rows["system"], rows["dtype"], strict=True)) == {
        **dict.fromkeys("abcg", "bf16"),
        **dict.fromkeys("de", "fp16"),
    }
    (left,) = [block.text for block in section.blocks if isinstance(block, Paragraph)]
    assert "f (gpt-5b, fp32" in left


def test_systems_without_common_work_are_said_to_have_none(tmp_path: Path) -> None:
    ranks, (model, grid, time_s) = next(iter(LOCAL.items()))
    other = train(system="local", ranks=ranks, model=model, grid=grid, time_s=time_s, sequences=8, job=1)
    (section,) = compared(points_of([train(), other], tmp_path))
    (left,) = section.blocks
    assert isinstance(left, Paragraph)
    assert "frontier (gpt-5b" in left.text
    assert "local (gpt-local-1" in left.text


def test_one_system_is_compared_with_none(tmp_path: Path) -> None:
    assert compared(points_of([train(), train(job=1, failure="no", system="other")], tmp_path)) == []
