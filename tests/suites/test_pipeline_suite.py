"""The study of pipelines: what a job is told, and what its result comes to."""

from pathlib import Path

from running import option, reframe

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
