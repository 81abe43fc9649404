"""A weight matrix on this rank."""

from math import prod

import torch
from torch import Tensor, nn

from engine.placement import Placement


class WeightBlock:
    """This rank's block of one weight matrix: its z shard, the shard's gradient, and the placement of both.

    A tied weight is one WeightBlock in two layers.
    """

    def __init__(self, placement: Placement, shard: nn.Parameter, shape: tuple[int, ...]) -> None:
        self.placement = placement
        self.shard = shard
        self.shape = shape
        self.gradient: Tensor = torch.empty(0)

    def gathered_bytes(self, dtype: torch.dtype) -> int:
        """Of the whole block [n, k] in that dtype."""
        return prod(self.shape) * dtype.itemsize
