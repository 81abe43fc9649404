"""Placement: the one typed record of where a parameter lives on the grid, and how it starts.

From it follow the local shapes, the initial values, the checkpoint's rectangles and how often a parameter is
counted in the gradient norm. Pure arithmetic: no torch in it.
"""

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from engine.grid import Axis, Coords, Grid

if TYPE_CHECKING:
    from torch import Tensor

# Splits of a weight [n, k] as nn.Linear stores it. Consecutive layers alternate, so that the output of one is the
# input of the next without movement (axonn-sc24 V-A).
NORMAL = (Axis.X, Axis.Y)
TRANSPOSED = (Axis.Y, Axis.X)


@dataclass(frozen=True, slots=True)
class Normal:
    """Initial values from a normal distribution of mean 0."""

    std: float


@dataclass(frozen=True, slots=True)
class Constant:
    """The same initial value everywhere."""

    value: float


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A part of the serial tensor that is contiguous in a rank's local elements, from index start on."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int

    @property
    def numel(self) -> int:
        """Elements in it."""
        return prod(self.sizes)

    def of(self, local: "Tensor") -> "Tensor":
        """Its view of a rank's local elements, in the serial tensor's dims."""
        return local.view(-1)[self.start : self.start + self.numel].view(self.sizes)


@dataclass(frozen=True, slots=True)
class Placement:
    """How a parameter of serial shape `shape` is laid over the grid.

    split: the axis that splits each dim, or None. groups: dim 0 is that many equal parts, each split on its own (3 for
    a fused QKV, whose heads are split). sharded: a rank's block, flattened, is sharded over z (weights of matmuls and
    token tables); otherwise it is replicated over z. Over data every parameter is replicated.
    """

    name: str
    shape: tuple[int, ...]
    split: tuple[Axis | None, ...]
    sharded: bool
    init: Normal | Constant
    groups: int = 1

    def block_shape(self, grid: Grid) -> tuple[int, ...]:
        """Shape of a rank's block before the split over z. The grid must divide the dims (fit.check_grid)."""
        return tuple(size // (grid[axis] if axis else 1) for size, axis in zip(self.shape, self.split, strict=True))

    def local_numel(self, grid: Grid) -> int:
        """Elements that one rank stores."""
        return prod(self.block_shape(grid)) // (grid.z if self.sharded else 1)

    def replicas(self, grid: Grid) -> int:
        """On how many ranks of one data group each element is stored."""
        splits = prod(grid[axis] for axis in self.split if axis) * (grid.z if self.sharded else 1)
        return grid.x * grid.y * grid.z // splits

    def rectangles(self, grid: Grid, coords: Coords) -> list[Rectangle]:
        """The parts of the serial tensor that a rank stores, in the order in which it stores them.

        A z shard is one rectangle where z divides the block's rows, else up to three: the end of a row, whole rows,
        the start of a row. A fused QKV has that for each of its parts.
        """
        block = self.block_shape(grid)
        rows, width = block[0], (block[1] if len(block) > 1 else 1)
        first_column = coords[self.split[1]] * width if len(block) > 1 and self.split[1] else 0
        low, high = 0, rows * width
        if self.sharded:
            shard = high // grid.z
            low, high = coords.z * shard, (coords.z + 1) * shard
        found: list[Rectangle] = []
        for block_row, serial_row, count in self._row_runs(grid, coords, rows):
            start = max(low, block_row * width)
            end = min(high, (block_row + count) * width)
            while start < end:
                row, column = divmod(start, width)
                if column or end - start < width:
                    height, columns = 1, min(width - column, end - start)
                else:
                    height, columns = (end - start) // width, width
                at = (serial_row + row - block_row, first_column + column)
                dims = 1 if len(block) == 1 else 2
                found.append(Rectangle(at[:dims], (height, columns)[:dims], start - low))
                start += height * columns
        return found

    def _row_runs(self, grid: Grid, coords: Coords, rows: int) -> list[tuple[int, int, int]]:
        """Runs (first block row, first serial row, rows) of the block's rows that are neighbours serially."""
        axis = self.split[0]
        if axis is None or grid[axis] == 1:
            return [(0, 0, rows)]
        part, serial_part = rows // self.groups, self.shape[0] // self.groups
        return [(g * part, g * serial_part + coords[axis] * part, part) for g in range(self.groups)]
