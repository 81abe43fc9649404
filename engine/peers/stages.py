"""Pipelines cut the serial model as a row of modules, each of which takes what the one before gives.

The models have a table of tokens, blocks, a norm and a head, as the families in comparison.DECODERS have.
"""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from engine.peers.comparison import Unavailable
from engine.precision import at_least_fp32


class Begin(nn.Module):
    """It takes tokens [B, S] to [B, S, h]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tokens, self.positions = model.tokens, getattr(model, "positions", None)
        self._begin = model.begin  # a bound method: the model is no submodule, as it would have all blocks as well

    def forward(self, tokens_BS: Tensor) -> Tensor:
        return self._begin(tokens_BS)


class Middle(nn.Module):
    """It is a block, from [B, S, h] to [B, S, h], recomputed in the backward where the model is."""

    def __init__(self, model: Any, place: int) -> None:
        super().__init__()
        self.block = model.blocks[place]
        self._run, self._place = model.run_blocks, place

    def forward(self, x_BSH: Tensor) -> Tensor:
        return self._run(x_BSH, None, (self._place,))  # without rows of the batch, which no dropout needs here


class End(nn.Module):
    """It takes [B, S, h] to logits [B, S, V]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.norm, self.head = model.norm, model.head
        self._end = model.end

    def forward(self, x_BSH: Tensor) -> Tensor:
        return self._end(x_BSH)


def mean_cross_entropy(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    """Give the mean loss of a micro-batch, never below fp32."""
    return F.cross_entropy(at_least_fp32(logits_BSV).flatten(0, 1), targets_BS.flatten())


def cut(model: Any) -> list[nn.Module]:
    """List all of them in order. Raises Unavailable for a network whose first and last would share a table."""
    if model.head.weight is model.tokens.weight:
        raise Unavailable("A tied table would be two in a pipeline: compare a network that isn't tied.")
    return [Begin(model), *(Middle(model, place) for place in range(len(model.blocks))), End(model)]
