"""Groups of a job's ranks that communicate among each other, over a back end of their own."""

from collections.abc import Callable, Sequence
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
        """Time so many calls."""
        if not self.takes_part:
            return 0.0
        self.comm.outstanding.ranks = self._own
        start = self._clock.stamp()
        for _ in range(calls):
            work(self.comm)
        seconds = self._clock.seconds(start, self._clock.stamp_end())
        self.comm.outstanding.ranks = None
        return seconds
