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


class Casts:
    """Parameters in the compute dtype. In a step they are cast once, all together, not at each use.

    Takes the memory of one such copy of each, if the dtypes differ.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], dtype: torch.dtype) -> None:
        self._dtype = dtype
        held = {parameter: parameter.detach() for parameter in parameters}
        self._as_they_are = {parameter: values for parameter, values in held.items() if values.dtype == dtype}
        self._masters = {parameter: values for parameter, values in held.items() if values.dtype != dtype}
        self._copies: dict[nn.Parameter, Tensor] = {}
        self._fresh = False

    def start_step(self) -> None:
        """The parameters don't change until the step ends."""
        if self._masters and not self._copies:
            self._copies = {
                parameter: torch.empty_like(values, dtype=self._dtype) for parameter, values in self._masters.items()
            }
        if self._masters:
            torch._foreach_copy_(list(self._copies.values()), list(self._masters.values()))
            self._fresh = True

    def end_step(self) -> None:
        """They are about to change."""
        self._fresh = False

    def of(self, parameter: nn.Parameter) -> Tensor:
        """Its elements, of which no gradient is taken."""
        if parameter in self._as_they_are:
            return self._as_they_are[parameter]
        return self._copies[parameter] if self._fresh else self._masters[parameter].to(self._dtype)


def gathered_bytes(weights: Iterable[ShardedWeight], dtype: torch.dtype) -> int:
    """Memory of these weights' tiles, gathered in that dtype."""
    return sum(prod(weight.tile_shape) for weight in weights) * dtype.itemsize
