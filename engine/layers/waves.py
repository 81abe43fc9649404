"""Waves say a number as features: cosines and sines of it, from a period of 2 pi to one of 2 pi 10,000.

On the grid a product takes them as a normal linear layer: each rank makes its own part of them, and nothing moves.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.layers.linear import Linear

LONGEST_PERIOD = 10_000


def waves(numbers_B: Tensor, features: int) -> Tensor:
    """Give cosines and sines of each number, [B, features] in float64 (Vaswani et al. 2017, 3.5)."""
    places_W = torch.arange(features // 2, dtype=torch.float64, device=numbers_B.device)
    frequencies_W = torch.exp(-math.log(LONGEST_PERIOD) * places_W / len(places_W))
    angles_BW = numbers_B.unsqueeze(1) * frequencies_W
    return torch.cat([angles_BW.cos(), angles_BW.sin()], dim=1)


class WaveLinear(nn.Linear):
    """It maps numbers [B] to [B, n], by so many features of waves."""

    def forward(self, numbers_B: Tensor) -> Tensor:
        return F.linear(waves(numbers_B, self.in_features).to(self.weight.dtype), self.weight, self.bias)


class WaveLinearOnGrid(Linear):
    """It maps numbers [B] to [B, n / Gx] on the grid."""

    features: int
    """It is the number of all waves."""

    def forward(self, numbers_B: Tensor) -> Tensor:
        """Make this rank's part of the waves, then project."""
        waves_BK = waves(numbers_B, self.features)
        if self.in_axis is not None:
            waves_BK = waves_BK.chunk(self.in_ranks, dim=1)[self.comm.coords[self.in_axis]]
        return super().forward(waves_BK.to(self.schedule.compute_dtype).contiguous())
