"""Base of benchmarks: options, what they ask for, and a table of its figures; to sample images is one, too."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar, Literal

import torch

from engine.bench.world import World
from engine.comm.launch import Launch
from engine.errors import UsageError
from engine.grid import Grid
from engine.result.schema import Result

Kind = Literal["gemm", "matmul", "memory", "latency", "collectives", "p2p", "sample"]
Table = tuple[Sequence[str], list[tuple[str, ...]]]
"""Head and rows."""
FEWEST = 3
"""Fewest repetitions of anything: of fewer no spread is known."""
SMALLEST, LARGEST = 4096, 2**50
"""Least bytes of a buffer, and more than the most."""


class Benchmark(ABC):
    """Measurement of one thing; each kind is a dataclass of its options."""

    kind: ClassVar[Kind]
    dtype: str
    unmeasured: ClassVar[str]
    """Beginning of the reason where nothing could be measured."""
    lost: ClassVar[str]
    """Beginning of the reason where the ranks failed."""
    between_ranks: ClassVar[bool] = False
    """If set, it measures what lies between ranks, and the result says which network that is."""

    @abstractmethod
    def check(self, launch: Launch, device: torch.device) -> None:
        """Raise UsageError for options that can't work."""

    @property
    def config(self) -> dict[str, Any]:
        """Return the options as the result keeps them."""
        return asdict(self)  # type: ignore[call-overload]

    def laid_out(self, ranks: int) -> Grid:
        """Give the grid of so many ranks."""
        return Grid.replicated(ranks)

    @abstractmethod
    def measure(self, world: World, found: dict[str, Any]) -> None:
        """Fill fields of the result as soon as they are known. Collective. Raises Unmeasurable, or one of LOST."""

    @staticmethod
    @abstractmethod
    def table(result: Result) -> Table:
        """Return the head and the rows of what a person reads."""


def check_buffer(name: str, num_bytes: float | None) -> None:
    """Raise UsageError for a size with which nothing can be measured."""
    if num_bytes is not None and not SMALLEST <= num_bytes < LARGEST:
        raise UsageError(f"{name} has {SMALLEST} bytes or more, but {num_bytes:g} were given.")


def check_repeats(name: str, repeats: int) -> None:
    """Raise UsageError for fewer than tell a spread."""
    if repeats < FEWEST:
        raise UsageError(f"{name} is repeated {FEWEST} times or more, but {repeats} was given.")


def check_budget(time_budget_s: float) -> None:
    """Raise UsageError for a time in which nothing can be measured."""
    if not time_budget_s > 0:
        raise UsageError(f"A time budget is a positive number of seconds, but {time_budget_s:g} was given.")
