"""It is a weight matrix on this rank."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from engine.overlap.flat import Flat
from engine.placement import Placement


@dataclass(frozen=True, slots=True, eq=False)
class ShardedWeight:
    """It is this rank's part of a weight matrix: a shard of its tile, the part [n, k] that the splits of features cut
    out.

    shard: [n * k / Gz] elements of the flat tile, in the master dtype. A tied weight is one object in two layers.
    tile_shape: (n, k), however it is stored.
    """

    placement: Placement
    shard: nn.Parameter
    tile_shape: tuple[int, ...]

    def tile(self, elements: Tensor) -> Tensor:
        """View a tile's flat elements as [n, k], as they are stored."""
        if self.placement.column_major:
            return elements.view(self.tile_shape[::-1]).t()
        return elements.view(self.tile_shape)


class Casts:
    """It gives parameters in the compute dtype. If the dtypes differ it copies them when a step starts, all at once.

    Whoever changes all parameters and the copy alike, as an optimizer does, spares the next step that. What changes a
    parameter after that is seen by the count of changes that PyTorch keeps of a tensor and its views; writes through
    parameter.data, and those of fused kernels, are not in it. first: elements before it are never asked for.
    """

    def __init__(self, flat: Flat, first: int, dtype: torch.dtype) -> None:
        self._flat, self._first, self._dtype = flat, first, dtype
        self._masters = flat.masters[first:]
        self._narrow = dtype != self._masters.dtype and len(self._masters) > 0
        self._held = {p: p.detach() for p, (start, _) in flat.places.items() if start >= first}
        self._whole: Tensor | None = None
        self._copies: dict[nn.Parameter, Tensor] = {}
        self._in_step = False
        self._changed: list[tuple[int, int]] = []
        """These elements were changed with the copy since a step last ended."""
        self._version = 0
        """The masters had this version then."""

    def start_step(self) -> None:
        """Make the copy: the parameters don't change until the step ends."""
        if not self._narrow:
            return
        if self._whole is None:
            self._whole = torch.empty_like(self._masters, dtype=self._dtype)
            self._copies = {p: self._copy_of(*self._flat.places[p]).view(p.shape) for p in self._held}
        if not self._is_fresh():
            self._whole.copy_(self._masters)
        self._in_step = True

    def end_step(self) -> None:
        """Take note that the parameters are about to change."""
        if self._in_step:
            self._changed.clear()
        self._in_step = False

    def of(self, parameter: nn.Parameter) -> Tensor:
        """Give the parameter's elements, of which no gradient is taken."""
        if self._in_step:
            return self._copies[parameter]
        held = self._held[parameter]
        return held.to(self._dtype) if self._narrow else held

    @contextmanager
    def changing(self, start: int, stop: int) -> Iterator[Tensor | None]:
        """Give the copy of these elements of the masters, to be changed as they are; None if there is none of them."""
        if self._whole is None or start < self._first:
            yield None
            return
        if self._version != self._masters._version:
            self._changed.clear()
        yield self._copy_of(start, stop)
        self._changed.append((start, stop))
        self._version = self._masters._version

    def _copy_of(self, start: int, stop: int) -> Tensor:
        assert self._whole is not None
        return self._whole[start - self._first : stop - self._first]

    def _is_fresh(self) -> bool:
        """Say whether all has been changed with the copy, and nothing else since."""
        end = self._first
        for start, stop in sorted(self._changed):
            end = max(end, stop) if start <= end else end
        return end == self._first + len(self._masters) and self._version == self._masters._version


def gathered_bytes(weights: Iterable[ShardedWeight], dtype: torch.dtype) -> int:
    """Count the bytes of these weights' tiles, gathered in that dtype."""
    return sum(prod(weight.tile_shape) for weight in weights) * dtype.itemsize
