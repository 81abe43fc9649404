"""What `check` lets pass of a schedule and its options, `train` carries out, with one stage as with two."""

from functools import cache
from pathlib import Path

import pytest
from trainers import trainer_of
from training import grid_id
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.choice import ModelChoice
from engine.pipeline.registry import AUTO, NAMES, PipelineOptions
from engine.training.checks import checked, notices
from engine.training.config import TrainConfig

SETTINGS: dict[str, dict[str, int]] = {
    "nothing": {},
    "limit": {"pipeline_limit": 2},
    "cap": {"weight_limit": 1},
    "both": {"pipeline_limit": 3, "weight_limit": 2},
    "chunks": {"chunks": 2},
}
TAKES = {"message-driven": {"limit"}, "message-driven-zb": {"limit", "cap", "both"}, "interleaved": {"chunks"}}
"""Settings that a schedule takes besides none."""


def config_of(grid: Grid, pipeline: PipelineOptions, **options: str) -> TrainConfig:
    model = ModelChoice(layers=4, hidden=16, heads=2, vocab=16, seq=4)
    batch = Batch(4 * grid.batch_split, 1)
    return TrainConfig(
        model=model,
        grid=grid,
        batch=batch,
        data="synthetic",
        device="cpu",
        precision="fp64",
        pipeline=pipeline,
        out=Path("unwritten.json"),
        **options,
    )


def loss_after_a_step(config: TrainConfig) -> float:
    """Loss of the second step, which depends on the weights that the first step left."""
    assert config.grid is not None

    def two(comm) -> float:  # type: ignore[no-untyped-def]
        trainer = trainer_of(config, comm)
        trainer.step()
        return trainer.step().loss

    return run_ranks(config.grid, two, record=True)[0]


@cache
def usual(grid: Grid) -> float:
    return loss_after_a_step(config_of(grid, PipelineOptions("one-by-one")))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*NAMES, AUTO])
@pytest.mark.parametrize("grid", [Grid(), Grid(z=2), Grid(pipe=2)], ids=grid_id)
def test_a_schedule_is_carried_out_with_what_the_check_lets_pass(grid: Grid, name: str) -> None:
    passed = set()
    for setting, options in SETTINGS.items():
        config = config_of(grid, PipelineOptions(name, **options))  # type: ignore[arg-type]
        try:
            checked(config, grid.size)
        except UsageError:
            continue
        passed.add(setting)
        assert loss_after_a_step(config) == pytest.approx(usual(grid), rel=1e-10)
    cut_in_chunks = name == "interleaved" and grid.stages == 1
    assert passed == (set() if cut_in_chunks else {"nothing"} | TAKES.get(name, set()))


@pytest.mark.parametrize("grid", [Grid(x=2), Grid(pipe=2)], ids=grid_id)
def test_mpi_is_asked_for_stages_alone(grid: Grid) -> None:
    config = config_of(grid, PipelineOptions(), messages="mpi")
    assert config.over_mpi(grid) == (grid.stages > 1)
    assert [grid_id(grid) in said for said in notices(checked(config, 2))] == ([True] if grid.stages == 1 else [])
