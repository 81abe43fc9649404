"""Parameters of a rank: one after another in one flat tensor, sharded weights first, with copies in the compute dtype.

Gradients and moments lie in the same order, so that one operator treats a range of them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from math import prod
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor, nn

from engine.grid import Axis, Grid
from engine.placement import Placement

Of = TypeVar("Of")


def in_order(placements: Mapping[str, Placement], grid: Grid) -> list[str]:
    """Order the names so that few ranges hold all of one kind: sharded ones, other matrices, and all else, each by how
    many ranks hold the same, and over which axes its gradient is partial.
    """

    def kind(name: str) -> tuple[bool, bool, int, tuple[Axis, ...]]:
        placement = placements[name]
        return not placement.sharded, len(placement.shape) < 2, placement.replicas(grid), placement.partial

    return sorted(placements, key=kind)


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of a rank's parameters in one order: offloaded ones in the host's memory first, then the device's."""

    host: Tensor
    device: Tensor

    def part(self, start: int, stop: int) -> Tensor:
        """View [start, stop), all of which lie on one side."""
        border = len(self.host)
        return self.host[start:stop] if stop <= border else self.device[start - border : stop - border]

    def zeros(self) -> "Elements":
        host = torch.zeros_like(self.host, pin_memory=self.host.is_pinned())
        return Elements(host, torch.zeros_like(self.device))


def on_host(numel: int, like: Tensor) -> Tensor:
    """Make room in the host's memory, for the copies of a GPU where the tensor lies on one."""
    device = "meta" if like.is_meta else "cpu"
    return torch.empty(numel, dtype=like.dtype, device=device, pin_memory=like.is_cuda and numel > 0)


class Flat:
    def __init__(self, parameters: Sequence[nn.Parameter], elements: Elements | None = None) -> None:
        """Place the parameters. elements: where they lie already, in this order; else they are moved into one
        tensor.
        """
        offsets = [0, *accumulate(parameter.numel() for parameter in parameters)]
        self.places: Mapping[nn.Parameter, tuple[int, int]] = MappingProxyType(
            dict(zip(parameters, pairwise(offsets), strict=True))
        )
        """elements [start, stop) of each parameter"""
        if elements is None:
            masters = torch.cat([parameter.detach().flatten() for parameter in parameters])
            for parameter in parameters:
                parameter.data = self.view(masters, parameter)
            elements = Elements(on_host(0, masters), masters)
        self.elements, self.masters = elements, elements.device

    @property
    def offloaded(self) -> int:
        """Number of elements in the host's memory, which are the first ones."""
        return len(self.elements.host)

    def __len__(self) -> int:
        return self.offloaded + len(self.masters)

    def view(self, of: Tensor, parameter: nn.Parameter) -> Tensor:
        """View the parameter's elements of another tensor in this order, in its shape."""
        start, stop = self.places[parameter]
        return of[start:stop].view(parameter.shape)

    def ranges(self, kind: Callable[[nn.Parameter], Of]) -> list[tuple[Of, int, int]]:
        """List neighbours of one kind, together [start, stop)."""
        found = []
        for of, group in groupby(self.places.items(), lambda item: kind(item[0])):
            places = [place for _, place in group]
            found.append((of, places[0][0], places[-1][1]))
        return found


@dataclass(frozen=True, slots=True, eq=False)
class ShardedWeight:
    """Rank's part of a weight, of a matrix or a convolution: a shard of its tile, which the splits of features cut
    out.
    """

    placement: Placement
    shard: nn.Parameter
    """1 / Gz of the flat tile's elements, in the master dtype, rounded up; a tied weight is one object in two layers"""
    tile_shape: tuple[int, ...]
    """(n, k), however it is stored; of a convolution (n, k, height, width)"""

    def tile(self, elements: Tensor) -> Tensor:
        """View a tile's flat elements, before zeros that end its last shards, in its shape, as they are stored."""
        if (numel := prod(self.tile_shape)) < len(elements):
            elements = elements[:numel]
        if self.placement.column_major:
            return elements.view(self.tile_shape[::-1]).t()
        return elements.view(self.tile_shape)


class Casts:
    """Parameters in the compute dtype, copied all at once when a step starts, if the dtypes differ.

    An optimizer that changes all parameters and the copy alike spares the next step the copy. Later changes of a
    parameter are seen by PyTorch's version counter; writes through parameter.data, and those of fused kernels, are not
    in it. first: elements before it are cast on demand, and not kept.
    """

    def __init__(self, flat: Flat, first: int, dtype: torch.dtype) -> None:
        self._flat, self._first, self._dtype = flat, first, dtype
        on_host = flat.elements.host
        self._masters = [flat.masters[first:]] if not len(on_host) else [on_host, flat.masters]
        self._narrow = dtype != flat.masters.dtype and len(flat) > first
        self._whole: Tensor | None = None
        self._copies: dict[nn.Parameter, Tensor] = {}
        self._in_step = False
        self._changed: list[tuple[int, int]] = []
        """elements that were changed with the copy since a step last ended"""
        self._version = 0
        """version of the masters then"""

    def start_step(self) -> None:
        """Make the copy: the parameters don't change until the step ends."""
        if not self._narrow:
            return
        if self._whole is None:
            self._whole = self._flat.masters.new_empty(len(self._flat) - self._first, dtype=self._dtype)
            kept = {p: place for p, place in self._flat.places.items() if place[0] >= self._first}
            self._copies = {p: self._copy_of(*place).view(p.shape) for p, place in kept.items()}
        if not self._is_fresh():
            for copy, masters in zip(self._whole.split([*map(len, self._masters)]), self._masters, strict=True):
                copy.copy_(masters)
        self._in_step = True

    def end_step(self) -> None:
        """Note that the parameters are about to change."""
        if self._in_step:
            self._changed.clear()
        self._in_step = False

    def cast(self, parameter: nn.Parameter) -> Tensor:
        """Return the parameter's elements, apart from autograd."""
        if self._in_step and parameter in self._copies:
            return self._copies[parameter]
        return parameter.detach().to(self._flat.masters.device, self._dtype)

    @contextmanager
    def changing(self, start: int, stop: int) -> Iterator[Tensor | None]:
        """Yield the copy of these elements of the masters, to be changed as they are; None if there is none."""
        if self._whole is None or start < self._first:
            yield None
            return
        if self._version != self._masters_version():
            self._changed.clear()
        yield self._copy_of(start, stop)
        self._changed.append((start, stop))
        self._version = self._masters_version()

    def _copy_of(self, start: int, stop: int) -> Tensor:
        assert self._whole is not None
        return self._whole[start - self._first : stop - self._first]

    def _is_fresh(self) -> bool:
        """Return whether all has been changed with the copy, and nothing else since."""
        end = self._first
        for start, stop in sorted(self._changed):
            end = max(end, stop) if start <= end else end
        return end == len(self._flat) and self._version == self._masters_version()

    def _masters_version(self) -> int:
        return sum(masters._version for masters in self._masters)


def gathered_bytes(weights: Iterable[ShardedWeight], dtype: torch.dtype) -> int:
    return sum(prod(weight.tile_shape) for weight in weights) * dtype.itemsize
