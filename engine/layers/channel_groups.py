"""GroupNorm's groups are neighbouring channels of the serial tensor: which ranks hold them follows from the placement.

Pure arithmetic: no torch in it.
"""

from collections import Counter

from engine.errors import UsageError, listed_divisors
from engine.grid import Coords, Grid
from engine.placement import Placement


def channel_counts(placement: Placement, grid: Grid, groups: int) -> list[Counter[int]]:
    """Count each group's channels on each rank of the axis that splits them. A rank's groups come in the order in which
    it stores them, each in one piece: channels keep the serial order. placement: of a norm's weight [C].

    Raises UsageError unless the groups divide the channels, and the axis every part of them.
    """
    (channels,), (axis,) = placement.shape, placement.split
    if groups < 1 or channels % groups:
        raise UsageError(
            f"{placement.name} has {channels} channels, which can't be {groups} groups of equal size: choose a number "
            f"of groups among {listed_divisors(channels)}."
        )
    found: list[Counter[int]] = []
    for place in range(grid[axis] if axis else 1):
        found.append(Counter())
        for rectangle in placement.rectangles(grid, Coords(**({axis.value: place} if axis else {}))):
            (first,), (count,) = rectangle.offsets, rectangle.sizes
            found[-1].update(channel * groups // channels for channel in range(first, first + count))
    return found


def straddling(placement: Placement, grid: Grid, groups: int) -> list[int]:
    """List the groups that no rank holds wholly, so that ranks have to share their statistics.

    >>> from engine.grid import STREAM
    >>> from engine.placement import Constant
    >>> norm = Placement("norm1.weight", (96,), (STREAM,), False, Constant(1.0))
    >>> straddling(norm, Grid(y=2), 32), straddling(norm, Grid(y=3), 32)
    ([], [10, 21])
    """
    counts = channel_counts(placement, grid, groups)
    return [group for group in range(groups) if max(count[group] for count in counts) < placement.shape[0] // groups]
