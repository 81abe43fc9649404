"""The page of plans: the ranked grids, where their time would go, and the predicted step of the first."""

import json
import re
from html import unescape
from pathlib import Path

import pytest
from reading import built, in_order, words
from sample_predictions import GRIDS, grids_of, plan, save_predictions, validation

from engine.planning.document import GridPlan
from reports.frames.predictions import newest_first, plan_rows
from reports.pages.planning import asked
from reports.read.load import load

HOSTILE = "<script>1</script><img src=x>"


def page(made: list[GridPlan], folder: Path) -> str:
    return (built(folder, predictions=made) / "planning.html").read_text()


def heads(html: str) -> list[str]:
    first = html.split("</thead>")[0]
    return [unescape(head) for head in re.findall(r"<button[^>]*>([^<]*)</button>", first)]


def cells(html: str) -> list[list[str]]:
    body = html.split("<tbody>")[1].split("</tbody>")[0]
    return [[unescape(cell) for cell in re.findall(r"<td[^>]*>([^<]*)</td>", row)] for row in body.split("</tr>")[:-1]]


def test_a_plan_says_what_was_asked_and_lists_its_grids_with_time_memory_and_cost(tmp_path: Path) -> None:
    html = page([plan()], tmp_path)
    said = words(html)
    assert in_order(said, "gpt-80b", "8,192 devices", "8 on", "8,192 sequences (16.78 million")
    assert in_order(said, "439 valid", "404 fit", "90.0 %", "59.6 GiB")
    assert [row[1] for row in cells(html)] == list(GRIDS)
    first = dict(zip(heads(html), cells(html)[0], strict=True))
    assert in_order(first["Time per batch, predicted"], "14.60 s", "11.68 s", "18.25 s", within=5)
    assert first["Exposed communication"] == "150.0 ms"
    assert (first["of the device"], first["HFU"], first["Time to solution"]) == ("31.2 %", "47.0 %", "14.6 days")
    assert (first["Device-hours"], first["Traced"]) == ("2,920,000", "whole")
    assert "Predicted, not measured" in said
    index = words((tmp_path / "site" / "index.html").read_text())
    assert in_order(index, "14.60 s", "1x1x128x64", "gpt-80b")
    assert in_order(index, "1 plan", "2026-03-02")


def test_a_plan_of_images_says_nothing_of_tokens() -> None:
    said = asked(plan().model_copy(update={"samples": "images"}))
    assert "8,192 images" in said
    assert "token" not in said


def test_columns_that_no_grid_has_are_left_out(tmp_path: Path) -> None:
    html = page([plan(simulated=False)], tmp_path)
    assert len(heads(html)) == 7
    assert {"Place", "Grid", "Micro-batch"} < {*heads(html)}
    assert "One predicted step" not in html


def test_the_bars_split_a_time_and_the_step_is_drawn_as_a_measured_one_but_marked(tmp_path: Path) -> None:
    html = page([plan()], tmp_path)
    bars, step = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", bars)
    assert {"compute", "x", "z", "data", *GRIDS} <= set(texts)
    assert "y" not in texts
    assert f"predicted, grid {GRIDS[0]}" in re.findall(r"<text[^>]*>([^<]*)</text>", step)
    assert "Predicted, not measured." in step
    assert len(re.findall(r"<svg", page([plan(drawn=False)], tmp_path / "none"))) == 1


def test_compute_is_what_exposed_communication_leaves_where_a_plan_does_not_tell_it() -> None:
    made = plan()
    rows = tuple(row.model_copy(update={"compute_s": None}) for row in made.rows)
    told, left = plan_rows(made), plan_rows(made.model_copy(update={"rows": rows}))
    assert left["compute_s"].tolist() == pytest.approx(told["compute_s"].tolist())


def test_plans_are_shown_newest_first_and_those_beyond_the_twelfth_in_a_table(tmp_path: Path) -> None:
    html = page(
        [plan(devices=64 * count, drawn=False, grids=grids_of(64 * count)[:1]) for count in range(1, 15)], tmp_path
    )
    sections = re.findall(r"<h2>([^<]*)</h2>", html)
    assert "896 devices" in sections[0]
    assert "192 devices" in sections[-2]
    assert sections[-1] == "Older plans"
    assert in_order(html.split("Older plans</h2>")[1], "gpt-80b", "64 devices")


def test_without_a_plan_the_page_says_what_to_run(tmp_path: Path) -> None:
    assert in_order(words(page([], tmp_path)), "par4d", "--system", "--model gpt-80b")
    assert "Nothing planned yet" in words((tmp_path / "site" / "index.html").read_text())


def test_a_plan_without_a_grid_and_one_of_markup_are_pages_too(tmp_path: Path) -> None:
    markup = plan(system=HOSTILE, model=HOSTILE, overlap=HOSTILE, grids=GRIDS[:1], drawn=False)
    html = page([plan(grids=()), markup], tmp_path)
    assert "<img" not in html
    assert html.count("<script") == 1


def test_predictions_that_cannot_be_read_are_listed_and_copies_count_once(tmp_path: Path) -> None:
    first, *_ = save_predictions([plan(), plan(), validation(), plan(devices=0, grids=GRIDS)], tmp_path)
    data = json.loads(first.read_text())
    (tmp_path / "newer.json").write_text(json.dumps(data | {"version": 3}))
    (tmp_path / "cut.json").write_text(first.read_text()[:99])
    (tmp_path / "odd.json").write_text(json.dumps(data | {"beauty": 1}))
    found = load([tmp_path])
    assert (len(found.plans), len(found.validations), found.duplicates, found.statuses) == (1, 1, 1, [])
    reasons = " ".join(skip.reason for skip in found.skipped)
    assert len(found.skipped) == 4
    assert all(words in reasons for words in ("update Par4D", "cut short", "at beauty", "are 0, not 1"))


def test_of_files_of_one_age_the_names_decide(tmp_path: Path) -> None:
    save_predictions([plan(), plan(devices=64), validation()], tmp_path)
    found = load([tmp_path])
    ordered = newest_first(found.plans, found.validations)
    assert [one.result.devices for one in ordered.plans] == [64, 8192]
    assert ordered.validation == found.validations[0]
