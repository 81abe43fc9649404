"""The study of pipelines: what a job is told, and what its result comes to."""

from pathlib import Path

from running import option, reframe

from engine.models.catalogue import lookup
from engine.models.flops import split_step_flops
from engine.result import metrics
from engine.result.judges.bubble import UNEVEN
from suites.base.series import points

PIPELINE = ["-c", "suites/pipeline.py", "--system"]


def test_each_point_is_a_job_on_a_machine_that_is_quiet_has_a_slow_stage_or_late_messages(tmp_path: Path) -> None:
    done = reframe(tmp_path, *PIPELINE, "frontier", "--dry-run", "-n", "1x1x1x1p8", "-S", "weight_limit=3")
    assert done.code == 0, done.out
    quiet, slow, late = sorted(
        done.jobs("bench pipeline"), key=lambda script: (" --delays" in script, " --slow" in script)
    )
    for script in (quiet, slow, late):
        words = ("--grid", "--micro-batch", "--rounds", "--steps-per-round", "--end-within", "--weight-limit")
        assert [option(script, word) for word in words] == ["1x1x1x1p8", "1", "6", "1", "480", "3"]
        assert " --timeline" in script
        assert "--label study=pipeline" in script
    assert (option(slow, "--slow-stage"), option(slow, "--slow-by"), option(late, "--delays")) == ("4", "0.2", "0.005")
    assert " --slow" not in quiet + late
    assert " --delays" not in quiet + slow


def test_bubbles_are_those_of_two_equal_stages_with_2_4_and_8_micro_batches(tmp_path: Path) -> None:
    done = reframe(tmp_path, *PIPELINE, "local", "--dry-run", "-n", "Bubbles")
    assert done.code == 0, done.out
    scripts = done.jobs("bench pipeline")
    counts = [int(option(script, "--batch-size")) // int(option(script, "--micro-batch")) for script in scripts]
    assert sorted(counts) == [2, 4, 8]
    for script in scripts:
        words = ("--model", "--grid", "--schedules", "--rounds")
        assert [option(script, word) for word in words] == ["gpt-halves", "1x1x1x1p2", "gpipe,zero-bubble", "16"]
        assert not {"--checkpoint-activations", "--slow-stage", "--delays"} & set(script.split())


def test_both_halves_of_their_network_work_equally_long_by_the_table_that_cuts_it() -> None:
    (model,) = {lookup(point.model) for point in points("bubbles", "local")}
    before, (first, second), after = split_step_flops(model, recompute=False)
    assert metrics.stages_differ(second + after, before + first) < UNEVEN / 2
