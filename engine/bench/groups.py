"""Groups of ranks that communicate in a measurement (axonn-sc24 V-B, case 1), each over a back end of its own."""

from collections.abc import Callable, Hashable, Sequence
from datetime import timedelta

import torch

from engine.comm.backend import ChannelSource
from engine.comm.collective import Lane
from engine.comm.funnel import Comm
from engine.comm.groups import ProcessGroups
from engine.grid import REPLICATING, Grid
from engine.measure.clock import HostClock

AXIS = REPLICATING[0]
"""The ranks of a party are along this axis of their grid."""
Connect = Callable[[Grid, torch.device, timedelta, Sequence[int]], ChannelSource]


class Party:
    """Group of this rank, one of several; a rank that is in none sends nothing. All ranks make it at once.

    connect: makes the back end of this rank's group.
    """

    def __init__(self, groups: Sequence[tuple[int, ...]], ranks: Comm, connect: Connect = ProcessGroups) -> None:
        self.size = len(groups[0])
        self.on_processors = ranks.device.type == "cpu"
        self._clock = HostClock(ranks.device)
        own = next((group for group in groups if ranks.rank in group), (ranks.rank,))
        grid, device, timeout = Grid.replicated(len(own)), ranks.device, ranks.timeout
        backend = connect(grid, device, timeout, own)
        self._own = own
        self.comm = Comm(grid, timeout=timeout, device=device, backend=backend, outstanding=ranks.outstanding)
        self.takes_part = grid.size > 1
        if not self.takes_part:  # torch names a group by how many its ranks have made: this rank makes one, too
            backend.channel(AXIS, Lane.MAIN, (0,))

    def seconds(self, work: Callable[[Comm], object], calls: int) -> float:
        """Time a number of calls."""
        if not self.takes_part:
            return 0.0
        self.comm.outstanding.ranks = self._own
        start = self._clock.stamp()
        for _ in range(calls):
            work(self.comm)
        seconds = self._clock.seconds(start, self._clock.stamp_end())
        self.comm.outstanding.ranks = None
        return seconds


def nodes_of(hosts: Sequence[Hashable]) -> list[list[int]]:
    """Return the ranks of each node, which are those of one host; of all nodes as many as the smallest has.

    >>> nodes_of(["a", "b", "a", "b", "a"])
    [[0, 2], [1, 3]]
    """
    nodes = [[rank for rank, of in enumerate(hosts) if of == host] for host in dict.fromkeys(hosts)]
    fewest = min(map(len, nodes))
    return [ranks[:fewest] for ranks in nodes]


def pairs(devices: int) -> list[tuple[int, int]]:
    """Return every (G0, G1) that fits on a node of that many devices, G1 being of two ranks at least.

    >>> pairs(4)
    [(1, 2), (1, 3), (1, 4), (2, 2)]
    """
    return [(g0, g1) for g0 in range(1, devices // 2 + 1) for g1 in range(2, devices // g0 + 1)]


def outer_groups(ranks: Sequence[int], g0: int, g1: int) -> list[tuple[int, ...]]:
    """Return groups of g1 ranks that are g0 apart; ranks that make up no g0 groups any more are in none.

    >>> outer_groups(range(5), 2, 2)
    [(0, 2), (1, 3)]
    """
    block = g0 * g1
    starts = range(0, len(ranks) - block + 1, block)
    return [tuple(ranks[start + first : start + block : g0]) for start in starts for first in range(g0)]
