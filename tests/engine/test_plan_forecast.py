"""`plan` with times: what is simulated adds up, and what is missing is told."""

import json
import logging
import re
from pathlib import Path

import pytest

from engine.cli.main import main
from engine.planning.document import GridPlan
from engine.result import metrics

SMALL = ["plan", "--system", "frontier", "--model", "gpt-local-1", "--gpus", "4", "--batch-size", "16"]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> GridPlan:
    """Plan of a small job, as the command writes it, its ten best traced as whole networks."""
    out = tmp_path_factory.mktemp("plan") / "plan.json"
    assert main([*SMALL, "--exact", "--micro-batch", "8", "--top", "100", "--out", str(out)]) == 0
    return GridPlan.model_validate_json(out.read_text())


def test_the_fastest_come_first_and_each_time_is_compute_and_what_is_exposed(plan: GridPlan) -> None:
    assert plan.ordered_by == "simulated"
    times = [row.time_s for row in plan.rows]
    assert all(row.exact or row.schedule for row in plan.rows)
    assert any(row.schedule for row in plan.rows)
    assert times[:10] == sorted(times[:10])  # type: ignore[type-var]
    for row in plan.rows:
        assert row.time_s is not None
        assert row.compute_s is not None
        assert row.exposed_s is not None
        assert row.interval_s is not None
        assert row.time_s == pytest.approx(row.compute_s + sum(row.exposed_s.values()))
        assert row.interval_s[0] < row.time_s < row.interval_s[1]


def test_utilisation_days_and_device_hours_are_those_of_the_time(plan: GridPlan) -> None:
    row = plan.rows[0]
    assert row.time_s is not None
    assert row.hfu is not None
    assert row.mfu is not None
    assert row.mfu <= row.hfu < 1
    assert (row.mfu == row.hfu) == (row.recomputed_blocks == 0)
    days = metrics.time_to_solution(plan.token_budget, plan.tokens / row.time_s) / 86400
    assert (row.days, row.device_hours) == pytest.approx((days, days * 24 * 4))


def test_the_best_has_a_timeline_and_its_memory_is_near_the_formulas(plan: GridPlan) -> None:
    row = plan.rows[0]
    assert row.timeline is not None
    assert row.timeline.step_s == row.time_s
    assert {span.kind for span in row.timeline.spans} == {"phase", "wait", "collective"}
    assert row.timeline_layers == 3
    assert all(other.timeline is None for other in plan.rows[1:])
    assert row.peak_bytes == pytest.approx(row.memory.total, rel=0.4), "the loss works on more rows at once on a GPU"


def test_stages_that_no_grid_has_are_told_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--pipe", "3"]) == 2
    told = capsys.readouterr().err
    assert re.match(r"No grid\D+4 devices\D+3 stages:.*--pipe", told)
    assert told.count("\n") == 1


def test_a_pipeline_is_planned_where_no_grid_of_one_stage_divides_the_network(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["plan", "--system", "frontier", "--model", "gpt-local-1", "--gpus", "6", "--batch-size", "16"]
    assert main([*words, "--micro-batch", "4", "--pipe", "3"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"only pipelines\b.* 44\.8 GB", told)
    assert re.search(r"1 +\d+x\d+x\d+x\d+p3 ", told)


def test_without_a_whole_trace_the_timeline_is_of_few_layers(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    words = [*SMALL, "--pipe", "1", "--layers", "12", "--hidden", "128", "--heads", "4"]
    words[words.index("--model") : words.index("--gpus")] = []
    assert main([*words, "--vocab", "512", "--seq", "64", "--top", "2", "--out", str(out)]) == 0
    first, second = GridPlan.model_validate_json(out.read_text()).rows
    assert (first.exact, second.timeline) == (False, None)
    assert first.timeline is not None
    assert first.timeline_layers is not None
    assert first.timeline_layers < 12
    assert first.time_s is not None
    assert first.timeline.step_s < first.time_s


def test_the_table_shows_times_and_the_explanation_compares_them(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert main([*SMALL, "--pipe", "1", "--top", "2", "--explain", "1"]) == 0
    said = capsys.readouterr().out
    assert "HFU" in said
    assert "device-" in said
    batch = next(line for line in said.splitlines() if line.startswith("A batch takes "))
    times, exposed = batch.split("; exposed: ")
    assert len(re.findall(r" \S+ s\b", times)) == 3
    assert exposed
    assert re.search(r" \S+ s less:.*\n.*\btoo\b", said)
    assert "traced 1 of " in caplog.messages[0]
    assert caplog.messages[-1].startswith("#" * 20 + " traced")


def test_a_machine_without_a_peak_is_told_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["plan", "--system", "vcluster", "--model", "gpt-test", "--gpus", "8", "--batch-size", "8"]
    assert main([*words, "--precision", "bf16"]) == 2
    assert "its file lacks device.peak_flops.bf16" in capsys.readouterr().err
    assert main([*words, "--precision", "bf16", "--equations", "--json"]) == 0
    assert "time_s" not in json.loads(capsys.readouterr().out)["rows"][0]
