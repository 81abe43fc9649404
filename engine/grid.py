"""Grid of ranks: pure arithmetic of named axes, each with its roles. No torch.

Source: axonn-sc24 section V-A, and for pipe axonn-ipdps22 section III. Axis x is innermost, data outermost:

    rank = x + Gx * (y + Gy * (z + Gz * (pipe + Gp * data)))

so that x, whose all-reduces are the most frequent, stays within a node for as long as it fits there, and the few
messages between the stages of a pipeline go between nodes. Where the sums over data are to stay in a node instead, pipe
and data change places.

Other rooms ask for axes by their roles. A new axis is a member of Axis, a field of Coords and Grid, and stands under
its roles.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from enum import StrEnum
from math import prod
from operator import attrgetter
from typing import Any

from engine.errors import UsageError


class Axis(StrEnum):
    """Axis of the grid, innermost first. "axis" always means one of these, "dim" a tensor dimension."""

    X = "x"
    Y = "y"
    Z = "z"
    PIPE = "pipe"
    DATA = "data"


SPLITTING_FEATURES = (Axis.X, Axis.Y)
"""Split the features of activations (tensor_mode.py)."""
TENSOR = Axis.X
"""Splits what tensor parallelism of one dimension does, as of other libraries."""
SHARDING = Axis.Z
"""Shards weights, and splits rows."""
CUTTING_STAGES = Axis.PIPE
"""Cuts the network into stages, each held by the ranks of one coordinate along it."""
SPLITTING_ROWS = (SHARDING, Axis.DATA)
"""Split the rows of a batch, so that every gradient is summed over exactly these: over SHARDING first."""
REPLICATING = tuple(axis for axis in SPLITTING_ROWS if axis is not SHARDING)
"""Split rows and nothing else: their ranks hold the same parameters, and once summed the same gradients."""
HOLDING = tuple(axis for axis in Axis if axis not in (*REPLICATING, CUTTING_STAGES))
"""Ranks along these hold one stage together."""
_SIZES = attrgetter(*Axis)
_ORDERS = {False: tuple(Axis), True: (*(axis for axis in Axis if axis is not CUTTING_STAGES), CUTTING_STAGES)}
"""Axes, the innermost first, by whether the stages are outermost."""


@dataclass(frozen=True, slots=True)
class Coords:
    x: int = 0
    y: int = 0
    z: int = 0
    data: int = 0
    pipe: int = 0

    def __getitem__(self, axis: Axis) -> int:
        return int(getattr(self, axis))


@dataclass(frozen=True, slots=True)
class Grid:
    """Ranks along each axis. With several stages its name ends with their number, after a capital P where pipe is the
    outermost axis.

    >>> grid = Grid.parse("2x1x2x4")
    >>> grid.size, grid.coords(5), grid.members(Axis.Z, 5)
    (16, Coords(x=1, y=0, z=0, data=1, pipe=0), (5, 7))
    >>> grid = Grid.parse("2x1x1x2p4")
    >>> grid.size, grid.stages, grid.coords(5), str(grid)
    (16, 4, Coords(x=1, y=0, z=0, data=0, pipe=2), '2x1x1x2p4')
    >>> Grid.parse("2x1x1x2P4").coords(5)
    Coords(x=1, y=0, z=0, data=0, pipe=1)
    """

    x: int = 1
    y: int = 1
    z: int = 1
    data: int = 1
    pipe: int = 1
    _: KW_ONLY
    pipe_outermost: bool = False

    def __post_init__(self) -> None:
        if min(_SIZES(self)) < 1:
            raise UsageError(f"A grid axis has at least one rank, but the grid given is {self}.")
        if self.pipe_outermost and 1 in (self.pipe, self.data):  # the ranks are the same
            object.__setattr__(self, "pipe_outermost", False)

    @classmethod
    def parse(cls, text: str) -> "Grid":
        """Read "2x1x2x4" as x=2, y=1, z=2, data=4, and "2x1x2x4p3" or "2x1x2x4P3" as that with 3 stages. Raises
        UsageError.
        """
        number = r"[1-9]\d{0,8}"
        if not re.fullmatch(rf"{number}(x{number}){{3}}([pP]{number})?", text):
            raise UsageError(
                "A grid is written as four positive numbers XxYxZxDATA such as 2x1x2x4, or 2x1x2x4p3 for three stages "
                f"of a pipeline, 2x1x2x4P3 if they are outermost, but {text!r} was given."
            )
        return cls(*map(int, re.split("[xpP]", text)), pipe_outermost="P" in text)

    @classmethod
    def replicated(cls, ranks: int) -> "Grid":
        """Return a line of ranks, each of which holds all parameters."""
        return cls().sized({REPLICATING[0]: ranks})

    def __str__(self) -> str:
        name = f"{self.x}x{self.y}x{self.z}x{self.data}"
        return name if self.pipe == 1 else f"{name}{'P' if self.pipe_outermost else 'p'}{self.pipe}"

    def __getitem__(self, axis: Axis) -> int:
        return int(getattr(self, axis))

    @property
    def order(self) -> tuple[Axis, ...]:
        return _ORDERS[self.pipe_outermost]

    @property
    def size(self) -> int:
        return prod(_SIZES(self))

    @property
    def plane(self) -> int:
        """Number of ranks that share the features of the same rows."""
        return self._over(SPLITTING_FEATURES)

    @property
    def shards(self) -> int:
        """Number of shards into which a weight is cut, after the splits of its features."""
        return self[SHARDING]

    @property
    def batch_split(self) -> int:
        """Number of parts into which the rows of a batch are split."""
        return self._over(SPLITTING_ROWS)

    @property
    def model_replicas(self) -> int:
        """Number of times the ranks hold all parameters."""
        return self._over(REPLICATING)

    @property
    def stages(self) -> int:
        """Number of stages into which the network is cut."""
        return self[CUTTING_STAGES]

    def with_stages(self, stages: int) -> "Grid":
        """Return the grid with stages of this one's ranks. Raises UsageError for none, or if it has another number of
        them.
        """
        if stages < 1:
            raise UsageError(f"--pipe is a number of stages from 1 up, but {stages} was given.")
        if self.stages not in (1, stages):
            raise UsageError(
                f"Grid {self} has {self.stages} stages, but --pipe {stages} was given: leave one of both out."
            )
        return self.sized({CUTTING_STAGES: stages})

    def sized(self, sizes: Mapping[Axis, int]) -> "Grid":
        changed: dict[str, Any] = {axis.value: size for axis, size in sizes.items()}
        return replace(self, **changed)

    def stride(self, axis: Axis) -> int:
        """Return the distance in rank numbers between neighbours on an axis."""
        return self._over(self.order[: self.order.index(axis)])

    def coords(self, rank: int) -> Coords:
        """Return the coordinates of a rank. Raises UsageError if the grid has no such rank."""
        if not 0 <= rank < self.size:
            raise UsageError(f"Rank {rank} is not on the grid {self}, which has ranks 0 to {self.size - 1}.")
        return Coords(**{axis.value: (rank // self.stride(axis)) % self[axis] for axis in Axis})

    def rank(self, **coords: int) -> int:
        """Return the rank at these coordinates, by axis, the others being 0. Raises UsageError if one lies outside."""
        at = Coords(**coords)
        for axis in Axis:
            if not 0 <= at[axis] < self[axis]:
                raise UsageError(
                    f"Coordinate {axis}={at[axis]} is not on the grid {self}, whose axis {axis} goes from 0 to "
                    f"{self[axis] - 1}."
                )
        return self.position(at, self.order)

    def position(self, coords: Coords, axes: Iterable[Axis]) -> int:
        """Return a rank's number among those that differ along these axes alone, the first of which counts fastest."""
        number, stride = 0, 1
        for axis in axes:
            number, stride = number + coords[axis] * stride, stride * self[axis]
        return number

    def members(self, axis: Axis, rank: int) -> tuple[int, ...]:
        """List the ranks that differ from this one along one axis only, itself included, in order."""
        stride = self.stride(axis)
        first = rank - self.coords(rank)[axis] * stride
        return tuple(range(first, first + stride * self[axis], stride))

    def _over(self, axes: Iterable[Axis]) -> int:
        return prod(getattr(self, axis) for axis in axes)
