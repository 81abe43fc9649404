"""Tensor modes: how a network's activations, and so its weights, lie on the plane of axes x and y. No torch.

A block's features lie on one of two sides: in the residual stream, or inside, between two products. Who has to know
which axis splits what of a side asks the mode.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod

from engine.grid import SPLITTING_FEATURES, Axis, Grid


class Side(StrEnum):
    """Place of activations in a network."""

    STREAM = "stream"
    """residual stream, with norms, dropout and sums"""
    INNER = "inner"
    """between a product that reads the stream and one that ends on it: heads, feed-forward; and logits"""


@dataclass(frozen=True, slots=True)
class SideAxes:
    """Axes of the plane that split the activations of a side."""

    features: Axis
    """axis that splits features"""
    rows: tuple[Axis, ...] = ()
    """axes that split rows, besides those that split the batch"""

    @property
    def axes(self) -> tuple[Axis, ...]:
        return (self.features, *self.rows)


@dataclass(frozen=True, slots=True)
class TensorMode:
    """Sides of a block on the plane.

    >>> four_d, grid = ALGORITHM_1, Grid(x=2, y=3)
    >>> four_d.parts(Side.STREAM, grid), four_d.repeats(Side.STREAM, grid), four_d.repeating(Side.STREAM)
    (3, 2, (<Axis.X: 'x'>,))
    """

    name: str
    stream: SideAxes
    inner: SideAxes
    by_heads: bool = False
    """whether heads are cut along inner.rows, too, so that attention has all rows"""
    square: bool = False
    """whether both sides lie alike on a square of ranks, over all of which SUMMA splits each product"""
    gathers_again: bool = False
    """whether an input that a product has gathered is gathered again for its weight's gradient, not kept"""
    by_size: bool = False
    """whether a weight of a square lies so that the smaller one of what it takes and gives is sent"""

    @property
    def splits_rows(self) -> bool:
        return bool(self.stream.rows or self.inner.rows)

    @property
    def gathers(self) -> bool:
        """Whether a product has more rows than what is around it, which ranks gather for it."""
        return self.splits_rows and not self.square

    @property
    def whole(self) -> "TensorMode":
        """Same split of the stream's features, in Algorithm 1, which splits no rows."""
        inner = self.inner.rows[0] if self.square else self.inner.features
        return TensorMode("4d", SideAxes(self.stream.features), SideAxes(inner))

    def on(self, grid: Grid) -> str:
        """Name the mode, and of squares their number and size.

        >>> SQUARE.on(Grid(x=2, y=2, z=3))
        '2d, 3 squares of 2x2'
        """
        if not self.square:
            return self.name
        count, sides = grid.size // grid.plane, "x".join(str(grid[axis]) for axis in self.stream.axes)
        return f"{self.name}, {count} square{'s' if count > 1 else ''} of {sides}"

    def __getitem__(self, side: Side) -> SideAxes:
        return self.stream if side is Side.STREAM else self.inner

    def axis(self, side: Side | None) -> Axis | None:
        """Return the axis that splits a side's features; None for what no axis splits."""
        return None if side is None else self[side].features

    def split(
        self, sides: tuple[Side | None, Side | None], *, transposed: bool = False
    ) -> tuple[Axis | None, Axis | None]:
        """Return the axes that split a weight [n, k], of whose outputs and inputs these are the sides. transposed:
        whether it lies so on a square.
        """
        if self.square:
            across, (down,) = self.stream.features, self.stream.rows
            return (down, across) if transposed else (across, down)
        n, k = sides
        return self.axis(n), self.axis(k)

    def repeating(self, side: Side) -> tuple[Axis, ...]:
        """List the axes of the plane along which ranks have the same of a side."""
        return tuple(axis for axis in SPLITTING_FEATURES if axis not in self[side].axes)

    def parts(self, side: Side, grid: Grid) -> int:
        """Count the parts into which the plane cuts what lies on a side."""
        return prod(grid[axis] for axis in self[side].axes)

    def repeats(self, side: Side, grid: Grid) -> int:
        """Count the ranks of the plane that have the same of a side."""
        return prod(grid[axis] for axis in self.repeating(side))


ALGORITHM_1 = TensorMode("4d", stream=SideAxes(Axis.Y), inner=SideAxes(Axis.X))
"""axonn-sc24, Algorithm 1: each side's features are split over one axis, and the same along the other."""
SPLIT = TensorMode("split", stream=SideAxes(Axis.Y, (Axis.X,)), inner=SideAxes(Axis.X, (Axis.Y,)))
"""The same without repeated work: each side's rows are split over the other axis."""
SPLIT_HEADS = replace(SPLIT, name="split-heads", by_heads=True)
"""SPLIT, but attention's heads are split over both axes, and there no rows are."""
SQUARE = TensorMode(
    "2d", stream=SideAxes(Axis.X, (Axis.Y,)), inner=SideAxes(Axis.X, (Axis.Y,)), square=True, by_size=True
)
"""SUMMA (layers/modes/summa.py)."""
SQUARE_AS_PUBLISHED = replace(SQUARE, name="2d-published", by_size=False)
"""SUMMA whose weights all lie as those of Xu et al. 2021."""
