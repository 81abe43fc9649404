"""Waves say a number as features: cosines and sines of it, from a period of 2 pi to one of 2 pi 10,000.

On the grid a product takes them as a normal linear layer: each rank makes its own part of them, and nothing moves.
"""

import math
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.linear import Linear

LONGEST_PERIOD = 10_000


def waves(numbers_B: Tensor, features: int, *, sines_first: bool = False) -> Tensor:
    """Give cosines and sines of each number, [B, features] in float64 (Vaswani et al. 2017, 3.5).

    sines_first: before cosines, and up to the longest period, as Ho et al.'s code has it; others end one step before.
    """
    places_W = torch.arange(features // 2, dtype=torch.float64, device=numbers_B.device)
    frequencies_W = torch.exp(-math.log(LONGEST_PERIOD) * places_W / (len(places_W) - sines_first))
    angles_BW = numbers_B.unsqueeze(1) * frequencies_W
    both = (angles_BW.sin(), angles_BW.cos()) if sines_first else (angles_BW.cos(), angles_BW.sin())
    return torch.cat(both, dim=1)


class WaveLinear(nn.Linear):
    """It maps numbers [B] to [B, n], by so many features of waves."""

    def __init__(self, features: int, out_features: int, *, sines_first: bool = False) -> None:
        super().__init__(features, out_features)
        self.waves = partial(waves, features=features, sines_first=sines_first)

    def forward(self, numbers_B: Tensor) -> Tensor:
        return F.linear(self.waves(numbers_B).to(self.weight.dtype), self.weight, self.bias)


class WaveLinearOnGrid(Linear):
    """It maps numbers [B] to [B, n / Gx] on the grid."""

    waves: Callable[[Tensor], Tensor]
    """It makes all of them."""

    def forward(self, numbers_B: Tensor) -> Tensor:
        """Make this rank's part of the waves, then project."""
        waves_BK = self.waves(numbers_B)
        if self.in_axis is not None:
            waves_BK = waves_BK.chunk(self.in_ranks, dim=1)[self.comm.coords[self.in_axis]]
        return super().forward(waves_BK.to(self.schedule.compute_dtype).contiguous())
