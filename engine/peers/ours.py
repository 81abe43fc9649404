"""The engine's side of a contest: what `engine train` runs."""

from pathlib import Path

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.data.dataset import Synthetic
from engine.measure.recorder import Recorder
from engine.models.choice import ModelChoice
from engine.peers.contest import Case
from engine.training.config import TrainConfig
from engine.training.plan import Plan
from engine.training.trainer import Trainer


def trainer(case: Case, comm: Comm) -> Trainer:
    """The case on the grid of comm."""
    config = TrainConfig(
        model=ModelChoice(),
        grid=comm.grid,
        batch=Batch(case.sequences),
        data="synthetic",
        out=Path(),
        checkpoint_activations=case.checkpoint_activations,
        overlap=case.overlap,
        optim=case.optim,
        seed=case.seed,
        precision=case.precision,
    )
    plan = Plan(config, case.model, comm.grid, Synthetic(case.model.vocabulary))
    return Trainer(plan, comm, comm.recorder or Recorder())
