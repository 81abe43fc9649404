"""A trainer as `train` makes it."""

from engine.comm.funnel import Comm
from engine.training.config import TrainConfig
from engine.training.plan import checked
from engine.training.trainer import Trainer


def trainer_of(config: TrainConfig, comm: Comm) -> Trainer:
    """Of a run on the ranks of comm, which records."""
    assert comm.recorder is not None
    plan = checked(config, comm.grid.size)
    return Trainer(plan.training, plan.dataset, comm, comm.recorder, pretrained=plan.pretrained, saved=plan.saved)
