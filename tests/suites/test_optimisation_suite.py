"""The study of optimisations: its jobs on Frontier, grids that are settled before them, and a run on this machine."""

from pathlib import Path

import pytest
from forked_python import FIRST
from running import ONCE, figures, option, reframe, succeed

from engine.result import metrics
from engine.result.schema import parse
from engine.result.schema.contest import OptimisationSide
from suites.base.series import points

OPTIMISATIONS = ["-c", "suites/optimisations.py", "--system"]
FIG_7 = {512: "gpt-5b", 1024: "gpt-10b", 2048: "gpt-20b", 4096: "gpt-40b", 8192: "gpt-80b"}
BASELINES = {512: "8x1x1x64", 1024: "8x1x1x128", 2048: "8x1x2x128", 4096: "8x1x2x256", 8192: "8x1x4x256"}


def test_the_points_are_those_of_the_papers_figure() -> None:
    found = points("optimisations", "frontier")
    assert {point.devices: point.model for point in found} == FIG_7
    assert {(point.sequences, point.micro_batch, point.series.precision) for point in found} == {(8192, 2, "bf16")}


def test_a_job_has_both_grids_and_only_the_papers_overlap(tmp_path: Path) -> None:
    chosen = ["-n", "gpt-80b", "-S", "grid=2x1x32x128"]
    script = succeed(tmp_path, *OPTIMISATIONS, "frontier", "--dry-run", *chosen).script
    assert " -m engine bench optimisations " in script
    words = ("--model", "--grid", "--baseline", "--batch-size", "--micro-batch", "--rounds", "--steps-per-round")
    asked = ["gpt-80b", "2x1x32x128", "8x1x4x256", "8192", "2", "6", "1"]
    assert [option(script, word) for word in words] == asked
    assert (option(script, "--end-within"), option(script, "--devices-per-node")) == ("5760", "8")
    assert float(option(script, "--device-memory")) == 64e9
    assert "--checkpoint-activations" in script
    assert "--label study=optimisations" in script
    assert not {"--overlap", "--tune-matmul", "--pipe"} & set(script.split()), "these are the sides'"


def test_the_grid_is_the_planners_where_it_knows_the_machine(tmp_path: Path) -> None:
    script = succeed(tmp_path, *OPTIMISATIONS, "vcluster", "--dry-run").script
    assert "'grid_is=found by par4d plan'" in script
    assert option(script, "--baseline") == "2x1x1x4"
    assert option(script, "--grid") != "auto"


@pytest.mark.weekly
def test_on_frontier_there_are_five_jobs_on_the_planners_grids_of_one_stage(tmp_path: Path) -> None:
    done = succeed(tmp_path, *OPTIMISATIONS, "frontier", "--dry-run")
    scripts = {option(script, "--model"): script for script in done.jobs("bench optimisations")}
    assert set(scripts) == set(FIG_7.values())
    for devices, model in FIG_7.items():
        script = scripts[model]
        assert option(script, "--baseline") == BASELINES[devices]
        assert "p" not in option(script, "--grid")
        assert "'grid_is=found by par4d plan'" in script


@pytest.mark.parametrize("wrong", [["-S", "baseline=3x1x1x1"], ["-S", "grid=1x1x1x3"]])
def test_a_grid_that_cant_be_is_refused_before_the_job(wrong: list[str], tmp_path: Path) -> None:
    refused = reframe(tmp_path, *OPTIMISATIONS, "local", "--dry-run", *wrong)
    assert refused.code == 1
    assert "has 3 ranks, but 2" in refused.out
    assert not refused.jobs("bench optimisations")


QUICK_TUNING = "from engine.tuning import tune; tune.BUDGET_S['cpu'] = 0.2"


@pytest.mark.slow
def test_on_this_machine_each_side_has_its_parts_and_its_speed_up_over_the_one_before(tmp_path: Path) -> None:
    few = ["-S", "model=gpt-test", "-S", "rounds=2", *ONCE]
    run = succeed(tmp_path, *OPTIMISATIONS, "local", *few, **{FIRST: QUICK_TUNING})
    (case,) = run.cases()
    sides = parse(case["record"], "record").sides(OptimisationSide)
    assert [side.grid for side in sides] == ["2x1x1x1", *["1x1x2x1"] * 3]
    measured = figures(case)
    for side in sides:
        assert measured.pop(f"time_{side.name}") == pytest.approx(side.time_per_iteration_s)
        parts = measured.pop(f"compute_{side.name}") + measured.pop(f"exposed_{side.name}")
        assert parts == pytest.approx(side.time_per_iteration_s)
        if side.over_former is not None:
            faster = metrics.speed_up(1, side.over_former.ratio)
            assert measured.pop(f"speed_up_{side.name}") == pytest.approx(faster)
            assert side.over_former.low is None, "two rounds of one job have no interval, and no figures of its ends"
    assert not measured
