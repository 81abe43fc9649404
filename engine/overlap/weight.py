"""A weight matrix on this rank."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from engine.placement import Placement


@dataclass(frozen=True, slots=True, eq=False)
class ShardedWeight:
    """This rank's part of a weight matrix: a shard over z of its tile, the part [n, k] that x and y cut out.

    shard: [n * k / Gz] elements of the flat tile, in the master dtype. A tied weight is one object in two layers.
    tile_shape: (n, k), however it is stored.
    """

    placement: Placement
    shard: nn.Parameter
    tile_shape: tuple[int, ...]

    def tile(self, elements: Tensor) -> Tensor:
        """The view [n, k] of a tile's flat elements, as they are stored."""
        if self.placement.column_major:
            return elements.view(self.tile_shape[::-1]).t()
        return elements.view(self.tile_shape)


def gathered_bytes(weights: Iterable[ShardedWeight], dtype: torch.dtype) -> int:
    """Memory of these weights' tiles, gathered in that dtype."""
    return sum(prod(weight.tile_shape) for weight in weights) * dtype.itemsize
