"""The serial model in plain PyTorch, on one rank; bf16 throughout, or by autocast."""

from engine.comm.funnel import Comm
from engine.peers.comparison import Case
from engine.peers.peer import serial_model
from engine.peers.step import TrainingStep


class Plain(TrainingStep):
    """A step is what any PyTorch user writes."""

    def __init__(self, case: Case, comm: Comm) -> None:
        super().__init__(case, serial_model(case, comm.device), comm.device)
