"""The page of energy: medians over jobs by component, what was not measured and why, one sentence without any."""

import json
from pathlib import Path

import pytest
from reading import built
from sample_results import as_record, energy, series, train

from engine.result.schema import Result, parse
from engine.result.schema.step import Energy
from reports.frames.frame import frames
from reports.pages.energy import energy_points
from reports.read.load import Run
from reports.text import significant

WHY = "memory_energy isn't readable"


def point(job: int, watts: float, **changes: object) -> Result:
    counted = energy({"device": watts, "node": 1.5 * watts}, why=WHY, scope="the job's nodes, whole")
    return train(job=job, energy=counted, **changes)  # type: ignore[arg-type]


def page_of(results: list[Result], folder: Path) -> str:
    return (built(folder, results) / "energy.html").read_text()


def test_a_point_is_the_median_of_its_jobs_by_component() -> None:
    results = [point(1, 100e3), point(2, 120e3), point(3, 400e3), train(job=4), train(job=5, failure="lost")]
    table = energy_points(frames([Run(result, "") for result in results])).set_index("component")
    device, node, memory = table.loc["device"], table.loc["node"], table.loc["memory"]
    assert device["joules_per_iteration"] == pytest.approx(120e3 * 18)
    assert device["per_joule"] == pytest.approx(2**24 / (120e3 * 18))
    assert device["per_joule_low"] == pytest.approx(2**24 / (400e3 * 18))
    assert device["power_w"] == pytest.approx(120e3)
    assert device["jobs"] == 3
    assert node["flops_per_joule"] == pytest.approx(device["flops_per_joule"] / 1.5)
    summary = results[0].summary
    assert summary is not None
    assert device["flops_per_joule"] == pytest.approx(summary.model_flops_per_s / 120e3)
    assert memory["jobs"] == 0
    assert memory["unmeasured"] == WHY


def test_the_page_says_what_was_counted_and_what_was_not_and_why(tmp_path: Path) -> None:
    html = page_of(
        [point(1, 1e5), train(ranks=1024, job=2, energy=energy({"node": 3e5}, why="no such file"))], tmp_path
    )
    assert "the job&#39;s nodes, whole" in html
    assert "Not measured here: processor" in html
    row = html.split("<td>device</td>")[2].split("</tr>")[0]
    assert "not measured" in row
    assert "no such file" in row


def test_of_a_network_that_sees_images_these_are_counted(tmp_path: Path) -> None:
    of_text = point(1, 1e5)
    assert of_text.model is not None
    assert of_text.summary is not None
    seen = {"samples_per_s": 8192 / 18, "tokens_per_s": 1.0}
    of_images = {"model": of_text.model.model_copy(update={"vocabulary": None, "name": "unet-4b"})}
    of_images |= {"summary": of_text.summary.model_copy(update=seen)}
    html = page_of([of_text.model_copy(update=of_images)], tmp_path)
    assert "Images per joule" in html
    assert significant(8192 / (1e5 * 18)) in html
    assert "Tokens per joule</h3>" not in html


def test_without_any_energy_the_page_is_one_sentence(tmp_path: Path) -> None:
    off = train(job=1, energy=Energy(unmeasured="it was turned off by --energy off"))
    html = page_of([*series("local"), off, train(job=2, energy=energy({}))], tmp_path)
    main = html.split("<main")[1].split("</main>")[0]
    assert "Nothing measured yet: no" in main
    assert main.count("<p") == 1
    assert [tag for tag in ("<table", "<svg", "<section") if tag in main] == []


def test_a_run_with_energy_and_of_no_study_is_still_listed_as_one(tmp_path: Path) -> None:
    page_of([point(1, 1e5, study="by hand")], tmp_path)
    assert "Runs of no study" in (tmp_path / "site" / "index.html").read_text()


def test_results_that_are_older_than_energy_are_read() -> None:
    record = as_record(point(1, 1e5))
    assert parse(json.loads(json.dumps(record)), "new").energy is not None
    del record["energy"]
    assert parse(record, "old").energy is None
