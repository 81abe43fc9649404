"""All ranks of a job measure at once, as cores, caches and power are shared; one rank alone needs no process group."""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from engine.bench.record import Begun
from engine.comm.funnel import Comm
from engine.comm.launch import Launch, init_process_group
from engine.errors import ContactError, UsageError
from engine.grid import Grid
from engine.measure.machine import machine_name
from engine.timeouts import Timeouts
from engine.training.stall import watched

LOST = (RuntimeError, ContactError)
"""What is raised where another rank doesn't answer any more."""


class AtOnce:
    """The ranks that measure together. comm: None for one alone. Every method is collective.

    on_machine: how many of them share this rank's machine.
    """

    def __init__(self, comm: Comm | None = None) -> None:
        self.comm = comm
        self.count = comm.grid.size if comm else 1
        mine = zlib.crc32(machine_name().encode())
        self.on_machine = int((self.everyone([mine]) == mine).sum())

    def meet(self) -> None:
        """Wait for all others."""
        if self.comm:
            self.comm.barrier()

    def everyone(self, row: Sequence[float]) -> Tensor:
        """What each rank found: [ranks, n] in float64 on the host."""
        mine = torch.tensor(row, dtype=torch.float64)
        return self.comm.everyone(mine) if self.comm else mine[None]

    def mean(self, row: Sequence[float]) -> list[float]:
        """Of what the ranks found."""
        return [float(value) for value in self.everyone(row).mean(0)]

    def obstacle(self, mine: str | None) -> str | None:
        """Why one of the ranks can't go on, this rank's own reason first; None if all can."""
        blocked = bool(self.everyone([mine is not None]).any())
        return (mine or "can't be measured on another rank") if blocked else None


@contextmanager
def together(launch: Launch, device: torch.device, timeouts: Timeouts, begun: Begun) -> Iterator[Comm]:
    """All ranks of the launch, until they have all left. Raises one of LOST where one has gone.

    A rank that stands still fails what has begun, and ends.
    """
    timeout = timedelta(seconds=timeouts.timeout_s)
    begun.announce()
    init_process_group(launch, device, timeout, meeting_s=timeouts.meeting_timeout_s)
    comm = Comm(Grid(data=launch.world_size), timeout=timeout, device=device)
    with watched(comm, timeouts.timeout_s, begun.fail):
        yield comm
        comm.barrier()
    dist.destroy_process_group()


@contextmanager
def at_once(launch: Launch, device: torch.device, timeouts: Timeouts, begun: Begun) -> Iterator[AtOnce]:
    """The same, or one rank alone."""
    if launch.world_size == 1:
        yield AtOnce()
        return
    with together(launch, device, timeouts, begun) as comm:
        yield AtOnce(comm)


def check_budget(time_budget_s: float) -> None:
    """Raises UsageError for one in which nothing can be measured."""
    if not time_budget_s > 0:
        raise UsageError(f"A time budget is a positive number of seconds, but {time_budget_s:g} was given.")


def first_line(error: Exception) -> str:
    """Of what torch says at length."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
