"""Rows that judge the performance model are made of results of the study of grids and of that of pipelines."""

from pathlib import Path

from sample_pipelines import SCHEDULES, pipeline
from sample_results import train

from engine.result.schema import write
from engine.validation.measured import measured_in

GRIDS = ("1x1x1x4", "1x1x4x1")


def test_pipelines_of_a_job_stand_beside_its_grids_unless_disturbed_or_of_several_ranks_a_stage(tmp_path: Path) -> None:
    model = {"model": "gpt-vcluster-deep", "sequences": 8, "dtype": "fp32", "system": "vcluster", "partition": "cpu"}
    grids = [train(ranks=4, grid=grid, study="model_validation", series="deep", **model) for grid in GRIDS]
    quiet = pipeline()
    others = [
        *pipeline(grid="1x1x1x1p2"),
        *pipeline(grid="1x1x1x2p2"),
        *pipeline(slow_stage=1),
        *pipeline(delays_s=0.1),
        *pipeline(failure="an error"),
    ]
    for number, result in enumerate([*grids, *quiet, *others]):
        write(result, tmp_path / str(number) / "result.json")
    (job,) = measured_in(tmp_path)
    assert set(job.time_s) == set(GRIDS)
    assert {run.schedule for run in job.pipelines} == set(SCHEDULES)
    assert {(run.grid, run.micro_batch) for run in job.pipelines} == {("1x1x1x1p4", 1)}
    assert [run.time_s for run in job.runs] == sorted(run.time_s for run in job.runs)
