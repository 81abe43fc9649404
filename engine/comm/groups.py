"""Channels of a Comm over process groups of torch.distributed, of the back end that the default group has."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from engine.comm.backend import Channel, launch, nothing
from engine.comm.collective import OF_MESSAGES, Kind, Lane
from engine.comm.contact import Route
from engine.comm.gloo import GlooChannel
from engine.comm.nccl import CudaStreams, NcclChannel, NcclMessages, group_options, groups_of
from engine.errors import RunError
from engine.grid import Axis, Grid
from engine.measure.pending import Pending


class ProcessGroups:
    """Channels over torch.distributed. Each rank makes only its own groups, with a time-out for every collective."""

    def __init__(
        self, grid: Grid, device: torch.device, timeout: timedelta, ranks: Sequence[int] | None = None
    ) -> None:
        """Find this rank's place. ranks: of the job, in the grid's order, where the grid hasn't all.

        A grid of one rank needs no process group. Raises RuntimeError if there are not as many ranks as the grid has.
        """
        self._device, self._timeout = device, timeout
        if not dist.is_initialized():
            if grid.size > 1:
                raise RuntimeError("Comm needs an initialised process group for a grid of more than one rank.")
            self.rank = 0
            return
        self._ranks = range(dist.get_world_size()) if ranks is None else ranks
        if len(self._ranks) != grid.size:
            raise RuntimeError(f"Grid {grid} has {grid.size} ranks, the process group {len(self._ranks)}.")
        self.rank = self._ranks.index(dist.get_rank())

    def channel(self, axis: Axis, lane: Lane, members: Sequence[int]) -> Channel:
        """Make the channel. Raises RunError for a back end of torch.distributed that has none here."""
        name: str = dist.get_backend()
        if name not in ("gloo", "nccl", "fake"):
            raise RunError(
                f"Collectives go over gloo, nccl or fake, but torch.distributed was initialised with {name}: take one "
                "of the three."
            )
        in_the_job = [self._ranks[member] for member in members]
        route = Route(self._ranks[self.rank], f"on axis {axis}", in_the_job, name)
        count = groups_of(len(members)) if name == "nccl" and lane in OF_MESSAGES else 1
        with route.guard():
            made: list[Any] = [  # as for PyTorch 2.14 a rank might be no member of what it makes
                dist.new_group(
                    in_the_job,
                    backend=name,
                    timeout=self._timeout,
                    pg_options=group_options(self._timeout) if name == "nccl" else None,
                    use_local_synchronization=True,
                    group_desc=f"{axis} {lane}",
                )
                for _ in range(count)
            ]
        group, *others = made
        if name == "nccl":
            if lane in OF_MESSAGES:
                return NcclMessages([group, *others], self._device, route)
            return NcclChannel(group, CudaStreams(self._device), route)
        if name == "fake":
            return FakeChannel(group)
        return GlooChannel(group, route)


@contextmanager
def fake_group(grid: Grid, rank: int) -> Iterator[None]:
    """Make torch's fake back end the default group meanwhile: this rank of the grid runs alone.

    Results have the right shape and no meaning.
    """
    dist.init_process_group("fake", rank=rank, world_size=grid.size)
    try:
        yield
    finally:
        dist.destroy_process_group()


class FakeChannel:
    """Process group whose other ranks don't exist. Its work takes no callbacks and is never seen to complete."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def start(
        self, kind: Kind, source: Tensor, target: Tensor, peer: int | None, pending: Pending | None, *, blocking: bool
    ) -> Callable[[], None]:
        if not source.is_meta:  # for whose tensors PyTorch 2.9 has no collectives
            launch(kind, self._group, source, target, peer, async_op=True)
        if pending is not None:
            pending.end()
        return nothing
