"""The serial model in plain PyTorch, on one rank; bf16 throughout, or by autocast."""

from torch import Tensor, nn

from engine.comm.funnel import Comm
from engine.peers.contest import Case
from engine.peers.masters import Masters
from engine.peers.peer import Values, accumulate, autocast, mean_loss, serial_model


class Plain:
    """A training step as any PyTorch user writes it."""

    def __init__(self, case: Case, comm: Comm) -> None:
        self._case, self._device = case, comm.device
        self._model = serial_model(case, comm.device)
        self._masters = Masters(case, self._model)
        self._optimizer = self._masters.adamw(case)

    def step(self, tokens_BS: Tensor, targets_BS: Tensor) -> Values:
        """See peer.Peer."""
        self._optimizer.zero_grad()
        loss = accumulate(tokens_BS, targets_BS, self._case.peer_micro_batch, self._loss)
        self._masters.take_gradients()
        norm = nn.utils.clip_grad_norm_(self._masters.parameters, self._case.optim.clip)
        self._optimizer.step()
        return Values(loss.item(), norm.item())

    def _loss(self, tokens_BS: Tensor, targets_BS: Tensor) -> Tensor:
        return mean_loss(self._model, self._forward, tokens_BS, targets_BS)

    def _forward(self, tokens_BS: Tensor) -> Tensor:
        with autocast(self._case, self._device):
            return self._model(tokens_BS)
