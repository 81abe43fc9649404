"""Ranks of a job that measure together, as they share cores, caches and power; one rank alone is a job, too.

Samples that all take together are of as many calls as a clock needs, within a time that measurements share.
"""

import socket
import time
import zlib
from collections.abc import Callable, Sequence
from math import ceil
from statistics import median
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from engine.bench.groups import nodes_of
from engine.comm.funnel import Comm
from engine.errors import ContactError
from engine.measure.machine import machine_name, processor_s
from engine.measure.memory import forget_peak, free_bytes
from engine.result.schema.bench import Sampled
from engine.training.gathered import ranks_per_core

LOST = (RuntimeError, ContactError)
"""Errors that are raised where another rank doesn't answer any more."""
Made = TypeVar("Made")
FEWEST = 3
"""Fewest repetitions of anything: of fewer no spread is known."""
WINDOW_S = 0.02
"""Shortest sample, which has as many calls as that takes."""
MOST_CALLS = 1000


class Unmeasurable(Exception):
    """Reason why there is no figure, as the end of a sentence. Raised on all ranks."""


class World:
    """Ranks that compare what they find. Methods are collective, except those about this rank's memory."""

    def __init__(self, comm: Comm) -> None:
        self.comm, self.device, self.size = comm, comm.device, comm.grid.size
        mine = zlib.crc32(machine_name().encode())
        self.on_machine = int((self.gather_rows([mine]) == mine).sum())
        """Ranks that share this rank's machine."""
        self.ranks_per_core = ranks_per_core(comm)

    def gather_rows(self, row: Sequence[float]) -> Tensor:
        """Return what each rank found: [ranks, n] in float64 on the host."""
        return self.comm.gather_rows(torch.tensor(row, dtype=torch.float64))

    def nodes(self) -> list[list[int]]:
        """List the ranks of each node (nodes_of)."""
        return nodes_of(self.gather_rows([zlib.crc32(socket.gethostname().encode())]).flatten().tolist())

    def zeros(self, dtype: torch.dtype, *counts: int) -> list[Tensor]:
        """Allocate buffers whose sums never grow. Raises Unmeasurable where a rank can't."""

        def allocate() -> list[Tensor]:  # touched, which torch.zeros leaves to the first use
            return [torch.empty(count, dtype=dtype, device=self.device).zero_() for count in counts]

        return self.attempt(allocate, "the buffers can't be allocated")

    def mean(self, row: Sequence[float]) -> list[float]:
        """Average what the ranks found."""
        return [float(value) for value in self.gather_rows(row).mean(0)]

    def obstacle(self, mine: str | None) -> str | None:
        """Say why one of the ranks can't go on, this rank's own reason first; None if all can."""
        blocked = bool(self.gather_rows([mine is not None]).any())
        return (mine or "can't be measured on another rank") if blocked else None

    def attempt(self, make: Callable[[], Made], failed: str) -> Made:
        """Return what this rank makes, without the others' help. Raises Unmeasurable where a rank's torch can't."""
        made, why = None, None
        try:
            made = make()
        except RuntimeError as error:  # how torch reports too little memory, and a dtype or a device that doesn't work
            why = f"{failed}: {first_line(error)}"
        if (why := self.obstacle(why)) or made is None:
            raise Unmeasurable(why)
        return made

    def allocatable_bytes(self) -> int:
        """Return the memory that this rank can allocate now: its device's, or its share of the host's."""
        forget_peak(self.device)
        return free_bytes(self.device) // (self.on_machine if self.device.type == "cpu" else 1)

    def lack(self, needed_bytes: float) -> str | None:
        """Say what this rank would need and has, as the end of a sentence, if it hasn't so much memory."""
        free = self.allocatable_bytes()
        if needed_bytes <= free:
            return None
        return f"{needed_bytes / 1e9:.3g} GB of memory and {free / 1e9:.3g} GB are free"

    def size_of_buffers(self, asked: float | None, usual: int, smallest: int, count: int, words: str) -> int:
        """Choose the bytes of each of `count` buffers, alike on all ranks: those asked for, or else the usual, but no
        more than half the memory. Raises Unmeasurable, with these words around the size, where they don't fit.
        """
        if asked is None:
            own = max(smallest, min(usual, self.allocatable_bytes() // 2 // count))
            asked = float(self.gather_rows([own]).min())
        lack = self.lack(count * int(asked))
        if why := self.obstacle(lack and f"{words.format(asked / 1e9)} {lack}"):
            raise Unmeasurable(why)
        return int(asked)


def first_line(error: Exception) -> str:
    """Return the first line of what torch says at length."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


class Samples(Sampled):
    """Seconds of the slowest rank, and medians of two other times."""

    average_s: float
    """Average of the ranks that took part."""
    processor_s: float
    """Time a call takes of all ranks' processors together."""


class _Sample(NamedTuple):
    slowest_s: float
    average_s: float
    processor_s: float


class Sampler:
    """Taker of samples for measurements that share the time, one after another. Methods are collective."""

    def __init__(self, world: World, repeats: int, time_budget_s: float, measurements: int = 1) -> None:
        self._world, self._repeats, self._budget_s, self._left = world, repeats, time_budget_s, measurements
        self._start, self._spent_s = time.perf_counter(), 0.0

    @property
    def spent(self) -> bool:
        """Whether the time is over, alike on all ranks."""
        return self._spent_s >= self._budget_s

    def take(self, work: Callable[[int], float]) -> Samples:
        """Sample work(calls), which returns this rank's seconds: the slowest rank's count. A first call warms up.

        There are fewer samples than repeats where the measurement's share of the budget ends, but FEWEST at least.
        """
        return self.in_turns([work])[0]

    def in_turns(self, works: Sequence[Callable[[int], float]]) -> list[Samples]:
        """Sample several, as one measurement: a sample of each, again and again, so that their ratios are fair."""
        end_s = self._spent_s + max(0.0, self._budget_s - self._spent_s) / self._left
        self._left -= 1
        calls, samples = [], list[list[_Sample]]()
        for work in works:
            self._sample(work, 1)
            first = self._sample(work, 1)
            calls.append(min(MOST_CALLS, max(1, ceil(WINDOW_S / max(first.slowest_s, 1e-9)))))
            samples.append([first] if calls[-1] == 1 else [])
        fewest = min(map(len, samples))
        while fewest < self._repeats and (fewest < FEWEST or self._spent_s < end_s):
            for work, count, found in zip(works, calls, samples, strict=True):
                found.append(self._sample(work, count))
            fewest += 1
        return [_summarise(count, found) for count, found in zip(calls, samples, strict=True)]

    def _sample(self, work: Callable[[int], float], calls: int) -> _Sample:
        """Take a sample. What has passed is the slowest rank's, too, so that all decide alike."""
        self._world.comm.barrier()
        before_s = processor_s()
        own_s = work(calls)
        taken_s = processor_s() - before_s
        rows = self._world.gather_rows([own_s / calls, time.perf_counter() - self._start, taken_s / calls])
        slowest = rows.max(0).values
        self._spent_s = float(slowest[1])
        calling = rows[:, 0]
        return _Sample(float(slowest[0]), float(calling[calling > 0].mean()), float(rows[:, 2].sum()))


def _summarise(calls: int, samples: Sequence[_Sample]) -> Samples:
    slowest, average, processor = zip(*samples, strict=True)
    return Samples(
        samples=len(samples),
        calls=calls,
        median_s=median(slowest),
        low_s=min(slowest),
        high_s=max(slowest),
        average_s=median(average),
        processor_s=median(processor),
    )
