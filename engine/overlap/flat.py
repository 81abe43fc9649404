"""A rank's parameters lie one after another in one tensor, and their gradients and moments so in others.

So what treats many of them alike is one operator on a range, not one for each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Elements:
    """They are as many elements as a rank's parameters have, in one order: the first ones in the host's memory, where
    these are offloaded, and all others on the device.
    """

    host: Tensor
    device: Tensor

    def part(self, start: int, stop: int) -> Tensor:
        """View [start, stop), all of which lie on one side."""
        border = len(self.host)
        return self.host[start:stop] if stop <= border else self.device[start - border : stop - border]

    def zeros(self) -> "Elements":
        """Make as many zeros, which lie alike."""
        host = torch.zeros_like(self.host, pin_memory=self.host.is_pinned())
        return Elements(host, torch.zeros_like(self.device))


def on_host(numel: int, like: Tensor) -> Tensor:
    """Make room in the host's memory, for the copies of a GPU where the tensor lies on one."""
    device = "meta" if like.is_meta else "cpu"
    return torch.empty(numel, dtype=like.dtype, device=device, pin_memory=like.is_cuda and numel > 0)


class Flat:
    """Parameters lie one after another in a Flat. elements: of which every parameter is a view. masters: those of them
    that lie on the device, in one tensor. places: where a parameter's elements are, [start, stop).
    """

    def __init__(self, parameters: Sequence[nn.Parameter], elements: Elements | None = None) -> None:
        """Place the parameters. elements: where they lie already, in this order; without it they are moved into one
        tensor.
        """
        offsets = [0, *accumulate(parameter.numel() for parameter in parameters)]
        self.places: Mapping[nn.Parameter, tuple[int, int]] = MappingProxyType(
            dict(zip(parameters, pairwise(offsets), strict=True))
        )
        if elements is None:
            masters = torch.cat([parameter.detach().flatten() for parameter in parameters])
            for parameter in parameters:
                parameter.data = self.view(masters, parameter)
            elements = Elements(on_host(0, masters), masters)
        self.elements, self.masters = elements, elements.device

    @property
    def offloaded(self) -> int:
        """Count the elements that lie in the host's memory, which are the first ones."""
        return len(self.elements.host)

    def __len__(self) -> int:
        return self.offloaded + len(self.masters)

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
