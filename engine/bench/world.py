"""Ranks of a job that measure together, as they share cores, caches and power; one rank alone is a job, too."""

import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from engine.comm.funnel import Comm
from engine.errors import ContactError
from engine.measure.machine import machine_name
from engine.measure.memory import forget_peak, free_bytes
from engine.training.gathered import ranks_per_core

LOST = (RuntimeError, ContactError)
"""Errors that are raised where another rank doesn't answer any more."""
Made = TypeVar("Made")


class Unmeasurable(Exception):
    """Reason why there is no figure, as the end of a sentence. Raised on all ranks."""


class World:
    """Comparison of what ranks find. Its methods are collective, except those about this rank's memory.

    on_machine: how many ranks share this rank's machine. ranks_per_core: how many share its core.
    """

    def __init__(self, comm: Comm) -> None:
        self.comm, self.device, self.size = comm, comm.device, comm.grid.size
        mine = zlib.crc32(machine_name().encode())
        self.on_machine = int((self.gather_rows([mine]) == mine).sum())
        self.ranks_per_core = ranks_per_core(comm)

    def gather_rows(self, row: Sequence[float]) -> Tensor:
        """Return what each rank found: [ranks, n] in float64 on the host."""
        return self.comm.gather_rows(torch.tensor(row, dtype=torch.float64))

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
        """Settle the bytes of each of so many buffers, alike on all ranks: those asked for, or else the usual, but no
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
    """Give the first line of what torch says at length."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
