"""Which bandwidth the ranks of an axis find (axonn-sc24 V-B, par4d V-B). No torch in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from engine.grid import Axis, Grid


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Of one machine, bytes/s in one direction.

    inter: beta_inter, between two nodes. intra: within a node, for groups of g1 ranks that are g0 apart, while all
    groups of the node communicate at once: {(g0, g1): bytes/s}, the paper's case 1; what isn't in it is `within`.
    """

    devices_per_node: int
    inter: float
    within: float
    intra: Mapping[tuple[int, int], float] = field(default_factory=dict)

    def along(self, grid: Grid, axis: Axis) -> float:
        """Bytes/s that one group of the axis finds while all of them communicate (axonn-sc24 case 1, Eq. 7).

        beta_i = beta_inter / min(G_node, G_0 ... G_i-1) where a group leaves the node.
        """
        inner = prod(grid[before] for before in list(Axis)[: list(Axis).index(axis)])
        if inner * grid[axis] <= self.devices_per_node:
            return self.intra.get((inner, grid[axis]), self.within)
        return self.inter / min(self.devices_per_node, inner)


def agnostic(bandwidth: float = 1.0) -> Bandwidths:
    """The same everywhere, whatever the placement (par4d V-A). Its node is larger than any job."""
    return Bandwidths(devices_per_node=1 << 62, inter=bandwidth, within=bandwidth)
