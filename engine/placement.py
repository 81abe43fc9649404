"""Placement: the one typed record of where a parameter lives on the grid, and how it starts. No torch.

From it follow the local shapes, the initial values, the checkpoint's rectangles and how often a parameter is counted in
the gradient norm. A rank's tile is its part of a tensor after the splits of features; a sharded tile is cut further.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, product
from math import prod
from typing import TYPE_CHECKING

from engine.grid import HOLDING, SHARDING, Axis, Coords, Grid

if TYPE_CHECKING:
    from torch import Tensor

ALIGNED = 16
"""Elements of which a shard that ends in zeros has a multiple, as vector units and collectives like them."""


@dataclass(frozen=True, slots=True)
class Gaussian:
    std: float


@dataclass(frozen=True, slots=True)
class Uniform:
    bound: float


@dataclass(frozen=True, slots=True)
class Constant:
    value: float


Initial = Gaussian | Uniform | Constant


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Part of the serial tensor. Among a rank's local elements it begins at start and goes on by strides."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int
    strides: tuple[int, ...]

    @property
    def numel(self) -> int:
        return prod(self.sizes)

    @property
    def region(self) -> tuple[slice, ...]:
        return tuple(slice(offset, offset + size) for offset, size in zip(self.offsets, self.sizes, strict=True))

    def view(self, local: "Tensor") -> "Tensor":
        """View it in a rank's local elements, in the serial tensor's dims."""
        return local.view(-1)[self.start :].as_strided(self.sizes, self.strides)


@dataclass(frozen=True, slots=True)
class Placement:
    """Layout of a parameter of serial shape `shape` over the grid. Along axes that only split rows it is replicated."""

    name: str
    shape: tuple[int, ...]
    split: tuple[Axis | None, ...]
    """axis that splits each dim, or None"""
    sharded: bool
    """whether a rank's tile, flattened, is cut into shards of equal size, the last of which end in zeros where that
    doesn't divide it (weights of matmuls and token tables); else ranks along that axis replicate it
    """
    init: Initial
    parts: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """sizes of the parts of a dim, each of which is split on its own (query, key and value heads of a fused
    projection); a dim without is one part
    """
    column_major: bool = False
    """whether a rank stores its tile of a matrix column by column, not row by row"""
    sliced: Mapping[int, Axis] = field(default_factory=dict)
    """axis whose slices of a dim are the parts of it, so that another axis splits within each of them"""
    units: Mapping[int, int] = field(default_factory=dict)
    """number of equal units of each of a dim's parts, such as heads, none of which is cut; others are cut anywhere"""
    partial: tuple[Axis, ...] = ()
    """axes along which ranks hold the same elements, but have gradients of different rows or heads, which are summed
    once a step
    """

    def __post_init__(self) -> None:
        if len(self.split) != len(self.shape):
            raise ValueError(f"{self.name} has {len(self.shape)} dims, but its split names {len(self.split)}.")
        for dim, sizes in self.parts.items():
            if sum(sizes) != self.shape[dim]:
                raise ValueError(f"The parts {sizes} of {self.name} don't make up dim {dim} of size {self.shape[dim]}.")

    def tile_shape(self, grid: Grid) -> tuple[int, ...]:
        """Return the shape of a rank's tile, with the zeros that end it where the grid doesn't divide a part."""
        return tuple(sum(self.shares(dim, grid)) for dim in range(len(self.shape)))

    def local_numel(self, grid: Grid) -> int:
        """Count the elements that one rank stores, with the zeros that end a tile's parts and its shards."""
        tile = prod(self.tile_shape(grid))
        if not self.sharded:
            return tile
        return _round_up(tile, grid.shards * (ALIGNED if tile % grid.shards else 1)) // grid.shards

    @property
    def axes(self) -> tuple[Axis, ...]:
        """Axes along which ranks store different elements, the inner ones first."""
        return tuple(axis for axis in Axis if axis in self.split or (axis is SHARDING and self.sharded))

    def replicas(self, grid: Grid) -> int:
        """Count the ranks that hold one model together and store each element."""
        return prod(grid[axis] for axis in HOLDING if axis not in self.axes)

    def rectangles(self, grid: Grid, coords: Coords) -> list[Rectangle]:
        """List the parts of the serial tensor that a rank stores, in the order of their first local elements.

        A shard of a matrix is one rectangle where their number divides the tile's rows, else up to three: the end of a
        row, whole rows, the start of a row. Each of a dim's parts cuts them further. Of a tile that is stored column by
        column, read columns for rows.
        """
        tile, local = self.tile_shape(grid), self.local_numel(grid)
        low = coords[SHARDING] * local if self.sharded else 0
        high = min(low + local, prod(tile))
        order = -1 if self.column_major else 1
        stored = tile[::order]
        strides = tuple(prod(stored[dim + 1 :]) for dim in range(len(tile)))[::order]
        found: list[Rectangle] = []
        for first, sizes in ((first[::order], sizes[::order]) for first, sizes in _boxes(stored, low, high)):
            dims = [self._runs(dim, grid, coords, first[dim], sizes[dim]) for dim in range(len(tile))]
            for cut in product(*dims):
                at = sum(run.local * stride for run, stride in zip(cut, strides, strict=True))
                offsets, lengths = tuple(run.serial for run in cut), tuple(run.length for run in cut)
                found.append(Rectangle(offsets, lengths, at - low, strides))
        return sorted(found, key=lambda rectangle: rectangle.start)

    def _parts(self, dim: int, grid: Grid) -> tuple[int, ...]:
        if dim in self.sliced:
            slices = grid[self.sliced[dim]]
            return (self.shape[dim] // slices,) * slices
        return self.parts.get(dim, (self.shape[dim],))

    def shares(self, dim: int, grid: Grid) -> tuple[int, ...]:
        """Return the size of each part of a dim in a rank's tile."""
        axis, parts = self.split[dim], self._parts(dim, grid)
        if axis is None or grid[axis] == 1:
            return parts
        shares = []
        for size in parts:
            units = self.units.get(dim, size)
            shares.append(_round_up(units, grid[axis]) // grid[axis] * (size // units))
        return tuple(shares)

    def _runs(self, dim: int, grid: Grid, coords: Coords, first: int, count: int) -> list["_Run"]:
        """Find where the tile's elements first .. first + count - 1 along a dim stand in the serial tensor."""
        axis, parts = self.split[dim], self._parts(dim, grid)
        ranks, coord = (grid[axis], coords[axis]) if axis else (1, 0)
        if ranks == 1:
            return [_Run(first, first, count)]
        found: list[_Run] = []
        shares = self.shares(dim, grid)
        for size, end, share, there in zip(parts, accumulate(parts), shares, accumulate(shares), strict=True):
            begin, before = there - share, coord * share
            low, high = max(first, begin), min(first + count, there, begin + size - before)
            if low < high:
                found.append(_Run(low, end - size + before + low - begin, high - low))
        return found


def _round_up(number: int, to: int) -> int:
    return -(-number // to) * to


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbours along a dim, with their beginning in the tile and in the serial tensor."""

    local: int
    serial: int
    length: int


def _boxes(shape: tuple[int, ...], low: int, high: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the elements low .. high - 1 of a flattened tensor as (offsets, sizes) of boxes, in order."""
    if low >= high:
        return
    if not shape:
        yield (), ()
        return
    width = prod(shape[1:])
    row, column = divmod(low, width)
    if column:  # the end of a row
        end = min(high, (row + 1) * width)
        yield from _within(row, _boxes(shape[1:], column, end - row * width))
        row, low = row + 1, end
    whole = max(0, high - low) // width
    if whole:
        yield (row, *(0 for _ in shape[1:])), (whole, *shape[1:])
    yield from _within(row + whole, _boxes(shape[1:], 0, high - low - whole * width))


def _within(
    row: int, boxes: Iterator[tuple[tuple[int, ...], tuple[int, ...]]]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for offsets, sizes in boxes:
        yield (row, *offsets), (1, *sizes)
