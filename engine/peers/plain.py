"""The serial model in plain PyTorch, on one rank."""

from torch import Tensor, nn

from engine.comm.funnel import Comm
from engine.peers.contest import Case
from engine.peers.peer import Values, optimizer, serial_model


class Plain:
    """A training step as any PyTorch user writes it."""

    def __init__(self, case: Case, comm: Comm) -> None:
        self._model = serial_model(case)
        self._optimizer = optimizer(self._model, case)
        self._clip = case.optim.clip

    def step(self, tokens_BS: Tensor, targets_BS: Tensor) -> Values:
        """See peer.Peer."""
        self._optimizer.zero_grad()
        loss = self._model.loss(tokens_BS, targets_BS) / targets_BS.numel()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        self._optimizer.step()
        return Values(loss.item(), norm.item())
