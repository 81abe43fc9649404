"""A trainer as `train` makes it."""

from engine.comm.funnel import Comm
from engine.training.checks import checked
from engine.training.config import TrainConfig
from engine.training.trainer import Trainer


def trainer_of(config: TrainConfig, comm: Comm) -> Trainer:
    """Make the trainer of a run on the ranks of comm, which records."""
    assert comm.recorder is not None
    run = checked(config, comm.grid.size)
    return Trainer(run.training, run.dataset, comm, comm.recorder, pretrained=run.pretrained, saved=run.saved)
