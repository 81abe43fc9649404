"""A U-Net trains on real photographs, in processes, as on one rank; what it finds of noise grows."""

import runpy
from pathlib import Path

import pytest
from real_ranks import run_processes
from test_checkpoint import _losses
from test_unet_grid import EVERYTHING, TOLERANCE
from training import Case, Outcome, train_parallel, train_serial, worst_error

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.data.pictures import prepare
from engine.grid import Grid
from engine.models.choice import ModelChoice
from engine.training.config import TrainConfig
from engine.training_record import OptimConfig

CI = Path(__file__).resolve().parents[2] / "ci"
SIDE = 8


def _train(comm: Comm, case: Case) -> Outcome:
    return train_parallel(case, comm)


def test_processes_train_like_the_serial_model() -> None:
    ours = run_processes(Grid(2, 2, 1, 1), _train, EVERYTHING)[0]
    assert worst_error(ours, train_serial(EVERYTHING)) < TOLERANCE


@pytest.fixture(scope="module")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tile matplotlib's photographs as the README does."""
    folder = tmp_path_factory.mktemp("tiles")
    runpy.run_path(str(CI / "demo_images"))["main"](folder / "photographs")
    prepare(folder / "photographs", folder / "tiles", SIDE, unlabelled=True)
    return folder / "tiles"


@pytest.mark.weekly
def test_losses_of_real_tiles_fall_and_equal_one_ranks(tiles: Path) -> None:
    """Roundings grow from 2e-16 to 1e-11 in 100 steps and to 1e-8 in 300; with half the batch, to 1e-3."""
    steps, falls_to = 300, 0.2

    def config(grid: Grid) -> TrainConfig:
        return TrainConfig(
            model=ModelChoice(model="unet-tiny"),
            grid=grid,
            batch=Batch(16),
            data=str(tiles),
            precision="fp64",
            out=tiles.parent / "result.json",
            iterations=steps,
            warmup=0,
            optim=OptimConfig(learning_rate=1e-3),
        )

    grids = Grid(), Grid(1, 2, 2, 1)
    losses = [run_processes(grid, _losses, config(grid))[0] for grid in grids]
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
    last = losses[0][-max(3, steps // 10) :]
    assert sum(last) / len(last) < falls_to * losses[0][0]
