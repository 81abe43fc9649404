"""The engine itself with nothing overlapped: what its overlap is worth."""

from dataclasses import replace

from torch import Tensor

from engine.comm.funnel import Comm
from engine.overlap.flags import Overlap
from engine.peers.contest import Case
from engine.peers.ours import trainer
from engine.peers.peer import Values


class Synchronous:
    """Draws the same batches by itself."""

    def __init__(self, case: Case, comm: Comm) -> None:
        self._trainer = trainer(replace(case, overlap=Overlap()), comm)

    def step(self, tokens_BS: Tensor, targets_BS: Tensor) -> Values:
        """See peer.Peer."""
        done = self._trainer.step()
        return Values(done.loss, done.gradient_norm)
