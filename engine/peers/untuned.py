"""The engine as it is without its tuner, to see what the tuner gains in a whole step."""

from torch import Tensor

from engine.comm.funnel import Comm
from engine.peers.contest import Case
from engine.peers.ours import trainer
from engine.peers.peer import Values


class Untuned:
    """The case on the grid of comm, every product as PyTorch does it."""

    def __init__(self, case: Case, comm: Comm) -> None:
        self._trainer = trainer(case, comm)

    def step(self, tokens_BS: Tensor, targets_BS: Tensor) -> Values:
        """See peer.Peer. The trainer draws the same rows of the same batch by itself, as the other side's does."""
        done = self._trainer.step()
        return Values(done.loss, done.gradient_norm)
