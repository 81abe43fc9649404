"""A rank's parameters lie one after another in one tensor, and their gradients and moments so in others.

So what treats many of them alike is one operator on a range, not one for each.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import Tensor, nn

from engine.grid import Grid
from engine.placement import Placement

Of = TypeVar("Of")


def in_order(placements: Mapping[str, Placement], grid: Grid) -> list[str]:
    """Order the names so that few ranges hold all of one kind: what z shards, matrices that it doesn't, and all else,
    each by how many ranks hold the same.
    """

    def kind(name: str) -> tuple[bool, bool, int]:
        placement = placements[name]
        return not placement.sharded, len(placement.shape) < 2, placement.replicas(grid)

    return sorted(placements, key=kind)


class Flat:
    """Parameters lie one after another in a Flat. masters: [elements], of which every parameter is a view. places:
    where its elements are, [start, stop).
    """

    def __init__(self, parameters: Sequence[nn.Parameter], masters: Tensor | None = None) -> None:
        """Place the parameters. masters: where they lie already, in this order; without it they are moved into one."""
        offsets = [0, *accumulate(parameter.numel() for parameter in parameters)]
        self.places: Mapping[nn.Parameter, tuple[int, int]] = MappingProxyType(
            dict(zip(parameters, pairwise(offsets), strict=True))
        )
        if masters is None:
            masters = torch.cat([parameter.detach().flatten() for parameter in parameters])
            for parameter in parameters:
                parameter.data = self.view(masters, parameter)
        self.masters = masters

    def view(self, of: Tensor, parameter: nn.Parameter) -> Tensor:
        """View the parameter's elements of another tensor in this order, in its shape."""
        start, stop = self.places[parameter]
        return of[start:stop].view(parameter.shape)

    def ranges(self, kind: Callable[[nn.Parameter], Of]) -> list[tuple[Of, int, int]]:
        """Give neighbours of one kind, together [start, stop)."""
        found = []
        for of, group in groupby(self.places.items(), lambda item: kind(item[0])):
            places = [place for _, place in group]
            found.append((of, places[0][0], places[-1][1]))
        return found
