"""One figure compares what a device of each system reaches of the same work."""

import csv
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from sample_results import LOCAL, save, train
from sample_systems import LONGEST, MANY, names, systems
from test_report_pages import visible

from engine.result.schema import Result
from reports.figures.compare import compared
from reports.frames.frame import frames
from reports.frames.points import points
from reports.page import Figure, Figures, Paragraph, Section
from reports.read.load import load
from reports.read.peaks import with_peaks


def points_of(results: Sequence[Result], folder: Path) -> pd.DataFrame:
    """The points of a scaling study of these results."""
    save(list(results), folder)
    found = frames(load([folder]).runs)
    return points(with_peaks(found.runs))


def figure_of(sections: Sequence[Section]) -> Figure:
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
