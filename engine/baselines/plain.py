"""The serial model in plain PyTorch, on one rank."""

from torch import Tensor, nn

from engine.baselines.peer import Values, optimizer, serial_model
from engine.config import OptimConfig
from engine.models import GPTConfig


class Plain:
    """A training step as any PyTorch user writes it."""

    def __init__(self, config: GPTConfig, optim: OptimConfig, seed: int) -> None:
        self._model = serial_model(config, seed)
        self._optimizer = optimizer(self._model, config, optim)
        self._clip = optim.clip

    def step(self, tokens_BS: Tensor, targets_BS: Tensor) -> Values:
        """See peer.Peer."""
        self._optimizer.zero_grad()
        loss = self._model.loss(tokens_BS, targets_BS) / targets_BS.numel()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        self._optimizer.step()
        return Values(loss.item(), norm.item())
