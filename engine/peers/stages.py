"""Pipelines cut the serial model as a row of modules, each of which takes what the one before gives.

The models have a table of tokens, blocks, a norm and a head, as the families in comparison.DECODERS have.
"""

from inspect import signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.models.rotary import rotation
from engine.peers.comparison import Unavailable
from engine.precision import at_least_fp32


class Begin(nn.Module):
    """It takes tokens [B, S] to [B, S, h]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tokens = model.tokens
        self.positions = getattr(model, "positions", None)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        x_BSH = self.tokens(tokens_BS)
        if self.positions is None:
            return x_BSH
        return x_BSH + self.positions(torch.arange(tokens_BS.shape[1], device=tokens_BS.device))


class Middle(nn.Module):
    """It is a block, from [B, S, h] to [B, S, h], recomputed in the backward where the model is."""

    def __init__(self, model: Any, place: int) -> None:
        super().__init__()
        self.block = model.blocks[place]
        self._shape = model.shape
        asks_for_rows = "rows" in signature(self.block.forward).parameters
        self._others = (None,) if asks_for_rows else ()  # of the batch, which no dropout needs here
        self._run = [model.run_block]  # not a submodule: it would have all other blocks as well

    def forward(self, x_BSH: Tensor) -> Tensor:
        turn = None
        if self._shape.rotary_features:
            turn = rotation(self._shape, x_BSH.shape[1], x_BSH.device, x_BSH.dtype)
        return self._run[0](self.block, x_BSH, *self._others, turn)


class End(nn.Module):
    """It takes [B, S, h] to logits [B, S, V]."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.norm, self.head = model.norm, model.head

    def forward(self, x_BSH: Tensor) -> Tensor:
        return self.head(self.norm(x_BSH))


def mean_cross_entropy(logits_BSV: Tensor, targets_BS: Tensor) -> Tensor:
    """Give the mean loss of a micro-batch, never below fp32."""
    return F.cross_entropy(at_least_fp32(logits_BSV).flatten(0, 1), targets_BS.flatten())


def cut(model: Any) -> list[nn.Module]:
    """List all of them in order. Raises Unavailable for a network whose first and last would share a table."""
    if model.head.weight is model.tokens.weight:
        raise Unavailable("A tied table would be two in a pipeline: compare a network that isn't tied.")
    return [Begin(model), *(Middle(model, place) for place in range(len(model.blocks))), End(model)]
