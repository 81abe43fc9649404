"""The page of methods: its formulas are what the program computes, and no figure of a page is missing from it."""

import html
import re
from pathlib import Path
from statistics import correlation, geometric_mean, mean, median
from typing import Any

import pandas as pd
import pytest

from engine.result import metrics
from engine.result.metrics.definition import Definition
from reports.derived import by_row
from reports.frames.frame import frames
from reports.frames.predictions import newest_first
from reports.page import Column, Table
from reports.pages.study import all_studies
from reports.read.load import load
from reports.read.peaks import with_peaks

SAMPLES: dict[str, Any] = {
    "first_s": 2.5, "fastest_s": 2.0, "formula": 99, "counted": 98,
    "times_s": [1.0, 2.0, 6.0], "rounds": [(2.0, 4.0), (3.0, 4.0), (9.0, 10.0)], "work": 12.0, "time_s": 1.6,
    "base_s": 2.5, "flops_per_s": 7e12, "devices": 8, "peak_flops_per_s": 3e12, "size": 512, "multiplications": 3,
    "nn_flops_per_s": 8e12,
    "per_device_flops_per_s": 3.0, "smallest_per_device_flops_per_s": 4.0, "tokens": 1e9, "tokens_per_s": 3e3,
    "ours": 0.4, "published": 0.5, "loss": 3.1, "reference": -3.5, "hidden_s": 0.3, "exposed_s": 0.9, "compute_s": 1.1,
    "wait_s": 0.4, "idle_s": 0.5, "work_s": 1.2, "stages": 4, "micro_batches": 8, "expected": 0.375,
    "longest_s": 1.3, "shortest_s": 1.25,
    "lane_s": 1.3, "processor_s": 3.0, "cores": 2, "link_s": 0.4, "step_s": 2.1, "bound_s": 1.4, "none_s": 2.6,
    "bound_none_s": 1.5, "part_s": 0.7, "arrays": 3, "array_bytes": 2.0**20, "calls": 5, "operators": 100,
    "ours_bytes": 7e8, "peer_bytes": 9e8, "bytes_per_s": 1.3e12, "advertised_bytes_per_s": 1.6e12, "ratio": 0.9,
    "jobs": [([1.0, 2.0, 4.0], [3.0, 5.0]), ([2.0], [7.0])],
    "moved_bytes": 3e9, "taken_bytes": 5e9, "planned_bytes": 4e9, "traced_s": 0.5, "recorded_s": 0.6,
    "joules": 4e3, "seconds": 7.2e3, "message_bytes": 1.25e8,
    "iterations": 7, "model_flops_per_s": 9e9, "joules_per_iteration": 250.0,
    "predicted_s": 3.3, "measured_s": 3.0, "device_bytes": 64e9, "errors": [0.1, -0.3, 0.2],
    "ratios": [0.7, 0.9, 1.3],
    "places": [(1, 2), (2, 1), (3, 4), (4, 3)],
    "m": 3, "n": 5, "k": 7, "shapes": [(1.03, 1.0), (1.031, 1.0), (0.5, 0.4), (2.0, 2.1)],
}  # fmt: skip
# What is counted or read from a clock as it stands: everything else that is a number is a derived figure.
NAMES = """
    node_hours
among num_bytes gloo memory nccl mpi ranks nodes jobs runs rounds calls bytes size median_time_s compared
commits tokens apart ring groups message_bytes layers forwards changed own_s chosen_s best_s compute_s
collectives_s blocking_s exposed_s hidden_s axis_s loss serial_loss ours_s peer_s tolerance load array_bytes
cache_bytes repeats operators samples flight_s memory_max ours_bytes peer_bytes memory_min prefetch_bytes
cached_blocks counters machines seconds sample_s start end place place_by_equations place_agnostic
place_of_fastest efficient right micro_batch memory_bytes simulated_s held pending peak_bytes micro_batches m n
k launch products length within share predicted_s measured_s measured_exposed_s baseline_s equations_s agnostic_s
as_run_s formula counted
"""
READ = set(NAMES.split())


@pytest.mark.parametrize("definition", metrics.DEFINITIONS, ids=lambda definition: definition.name)
def test_a_formula_is_what_its_function_computes(definition: Definition) -> None:
    function = getattr(metrics, definition.name)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    inputs = {name: SAMPLES[name] for name in names}
    known: dict[str, Any] = {"__builtins__": {}}
    known |= {one.__name__: one for one in (median, geometric_mean, mean, correlation, max, min, abs, sum, len, sorted)}
    assert eval(definition.formula, known | inputs) == pytest.approx(function(**inputs))
    assert all(re.search(rf"\b{name}\b", definition.formula) for name in names)


def test_the_page_has_every_definition_with_its_formula_and_its_text(site: Path) -> None:
    page = (site / "methods.html").read_text()
    listed = page.split('<dl class="definitions">')[1].split("</dl>")[0]
    found = re.findall(
        r'<div id="([^"]+)">\s*<dt>([^<]+)</dt>\s*<dd><code>([^<]+)</code></dd>\s*<dd>([^<]+)</dd>', listed
    )
    assert [name for name, *_ in found] == [definition.name for definition in metrics.DEFINITIONS]
    for (_, title, formula, text), definition in zip(found, metrics.DEFINITIONS, strict=True):
        assert (title, html.unescape(formula)) == (definition.title, definition.formula)
        assert len(text) > 40


def test_every_page_leads_to_the_methods(site: Path) -> None:
    for page in site.glob("*.html"):
        assert page.read_text().count('<a href="methods.html"') == (1 if page.stem in ("index", "methods") else 2), (
            page.stem
        )
    assert 'href="methods.html#share_hidden"' in (site / "overlap.html").read_text()


@pytest.fixture(scope="module")
def tables(results: Path) -> list[Table]:
    found = load([results])
    everything = frames(found.runs, found.contests, newest_first(found.plans, found.validations), found.checks)
    everything = everything.of(with_peaks(everything.runs))
    pages = [study.page(everything) for study in all_studies()]
    return [
        block for page in pages for section in page.sections for block in section.blocks if isinstance(block, Table)
    ]


def test_every_number_in_a_table_is_read_or_is_a_figure_that_is_defined(tables: list[Table]) -> None:
    assert len(tables) > 20
    unknown = {
        (table.name, column.title, column.key)
        for table in tables
        for column in table.columns
        if column.numeric and not column.figure and column.key not in READ
        if not re.fullmatch(r"(exposed|hidden)_(x|y|z|data)|.*_published", column.key)
        if not table.name.startswith("published")
    }
    assert unknown == set()


def test_a_figure_that_is_defined_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="doesn't define: beauty"):
        Column("Beauty", "beauty", figure="beauty")


def test_a_figure_over_columns_is_nan_where_an_input_or_the_figure_is_missing() -> None:
    hidden, exposed = pd.Series([3.0, None, 0.0, 1.0]), pd.Series([1.0, 1.0, 0.0, float("inf")])
    found = by_row(metrics.share_hidden, hidden, exposed)
    assert found.isna().tolist() == [False, True, True, False]
    assert found.iloc[[0, 3]].tolist() == pytest.approx([0.75, 0.0])
    assert by_row(metrics.speed_up, 1.0, pd.Series([0.5, 0.0])).iloc[0] == pytest.approx(2.0)
    assert by_row(metrics.speed_up, 1.0, pd.Series([0.5, 0.0])).isna().tolist() == [False, True]
