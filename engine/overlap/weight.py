"""A weight matrix on this rank."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

import torch
from torch import nn

from engine.placement import Placement


@dataclass(frozen=True, slots=True, eq=False)
class ShardedWeight:
    """This rank's part of a weight matrix: a shard over z of its tile, the part [n, k] that x and y cut out.

    shard: [n * k / Gz] elements of the flat tile, in the master dtype. A tied weight is one object in two layers.
    """

    placement: Placement
    shard: nn.Parameter
    tile_shape: tuple[int, ...]


def gathered_bytes(weights: Iterable[ShardedWeight], dtype: torch.dtype) -> int:
    """Memory of these weights' tiles, gathered in that dtype."""
    return sum(prod(weight.tile_shape) for weight in weights) * dtype.itemsize
