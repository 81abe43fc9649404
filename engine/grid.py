"""The 4D grid of ranks: pure arithmetic of named axes, no torch in it.

Source: axonn-sc24 section V-A. Axis x is innermost, data outermost:

    rank = x + Gx * (y + Gy * (z + Gz * data))

so that x, whose all-reduces are the most frequent, stays within a node for as long as it fits there.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from engine.errors import UsageError


class Axis(StrEnum):
    """An axis of the grid, innermost first. "axis" always means one of these, "dim" a tensor dimension."""

    X = "x"
    Y = "y"
    Z = "z"
    DATA = "data"


@dataclass(frozen=True, slots=True)
class Coords:
    """Where a rank stands on each axis of the grid."""

    x: int
    y: int
    z: int
    data: int

    def __getitem__(self, axis: Axis) -> int:
        return int(getattr(self, axis))


@dataclass(frozen=True, slots=True)
class Grid:
    """How many ranks stand along each axis.

    >>> grid = Grid.parse("2x1x2x4")
    >>> grid.size, grid.coords(5), grid.members(Axis.Z, 5)
    (16, Coords(x=1, y=0, z=0, data=1), (5, 7))
    """

    x: int = 1
    y: int = 1
    z: int = 1
    data: int = 1

    def __post_init__(self) -> None:
        if min(self.x, self.y, self.z, self.data) < 1:
            raise UsageError(f"A grid axis has at least one rank, but the grid given is {self}.")

    @classmethod
    def parse(cls, text: str) -> "Grid":
        """Read "2x1x2x4" as x=2, y=1, z=2, data=4. Raises UsageError for anything else."""
        if not re.fullmatch(r"[1-9]\d{0,8}(x[1-9]\d{0,8}){3}", text):
            raise UsageError(
                f"A grid is written as four positive numbers XxYxZxDATA such as 2x1x2x4, but {text!r} was given."
            )
        return cls(*map(int, text.split("x")))

    def __str__(self) -> str:
        return f"{self.x}x{self.y}x{self.z}x{self.data}"

    def __getitem__(self, axis: Axis) -> int:
        return int(getattr(self, axis))

    @property
    def size(self) -> int:
        """Ranks in all."""
        return self.x * self.y * self.z * self.data

    @property
    def batch_split(self) -> int:
        """Into how many parts the rows of a batch are split: over z and over data."""
        return self.z * self.data

    def stride(self, axis: Axis) -> int:
        """Distance in rank numbers between neighbours on an axis."""
        return {Axis.X: 1, Axis.Y: self.x, Axis.Z: self.x * self.y, Axis.DATA: self.x * self.y * self.z}[axis]

    def coords(self, rank: int) -> Coords:
        """The coordinates of a rank. Raises UsageError if the grid has no such rank."""
        if not 0 <= rank < self.size:
            raise UsageError(f"Rank {rank} is not on the grid {self}, which has ranks 0 to {self.size - 1}.")
        return Coords(*((rank // self.stride(axis)) % self[axis] for axis in Axis))

    def rank(self, *, x: int = 0, y: int = 0, z: int = 0, data: int = 0) -> int:
        """The rank at the given coordinates. Raises UsageError if one lies outside its axis."""
        at = Coords(x, y, z, data)
        for axis in Axis:
            if not 0 <= at[axis] < self[axis]:
                raise UsageError(
                    f"Coordinate {axis}={at[axis]} is not on the grid {self}, whose axis {axis} goes from 0 to "
                    f"{self[axis] - 1}."
                )
        return sum(at[axis] * self.stride(axis) for axis in Axis)

    def members(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """The ranks that differ from this one along one axis only, itself included, in order."""
        stride = self.stride(axis)
        first = rank - self.coords(rank)[axis] * stride
        return tuple(range(first, first + stride * self[axis], stride))
