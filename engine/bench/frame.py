"""Frame of all benchmarks: options and a table of figures; ranks meet on their devices, are watched while they work,
and write a result. To sample images is one, too.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch

from engine.bench.world import FEWEST, LOST, Unmeasurable, World, first_line
from engine.comm.funnel import Comm
from engine.comm.launch import Launch, choose_device
from engine.comm.meeting import all_ranks
from engine.errors import UsageError
from engine.grid import Grid
from engine.reporter import Reporter, Status
from engine.result import provenance
from engine.result.schema import Diagnosis, Result, read, write
from engine.timeouts import Timeouts
from engine.training.gathered import Ranks, everyones, roster
from engine.training.stall import watched

BenchKind = Literal["gemm", "matmul", "memory", "latency", "flops", "layers", "collectives", "p2p", "sample"]
Table = tuple[Sequence[str], list[tuple[str, ...]]]
"""Head and rows."""
SMALLEST, LARGEST = 4096, 2**50
"""Least bytes of a buffer, and more than the most."""


class Benchmark(ABC):
    """Measurement of one thing; a subclass is a dataclass of its options."""

    kind: ClassVar[BenchKind]
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

    def lay_out(self, ranks: int) -> Grid:
        """Lay that many ranks out on a grid."""
        return Grid.replicated(ranks)

    @abstractmethod
    def measure(self, world: World, found: dict[str, Any]) -> None:
        """Fill fields of the result as soon as they are known. Collective. Raises Unmeasurable, or one of LOST."""

    @staticmethod
    @abstractmethod
    def table(result: Result) -> Table:
        """Return the head and the rows of what a person reads."""


def check_measurable(
    what: str, *, num_bytes: float | None = None, repeats: int = FEWEST, time_budget_s: float = 1.0
) -> None:
    """Raise UsageError for a size, a number of repeats, or a time with which nothing can be measured."""
    if num_bytes is not None and not SMALLEST <= num_bytes < LARGEST:
        raise UsageError(f"{what} has {SMALLEST} bytes or more, but {num_bytes:g} were given.")
    if repeats < FEWEST:
        raise UsageError(f"{what} is repeated {FEWEST} times or more, but {repeats} was given.")
    if not time_budget_s > 0:
        raise UsageError(f"A time budget is a positive number of seconds, but {time_budget_s:g} was given.")


def parse_doubling(text: str, number: str, read: Callable[[str], int], largest: int) -> set[int]:
    """Read "LOW..HIGH", which doubles, or a comma list of numbers of a pattern; nothing where it is neither."""
    if match := re.fullmatch(rf"({number})\.\.({number})", text):
        low, high = map(read, match.groups())
        return {low << step for step in range(largest.bit_length()) if low << step <= high <= largest}
    return set(map(read, text.split(","))) if re.fullmatch(rf"{number}(,{number})*", text) else set()


class BenchReporter(Reporter[Result]):
    """Result of a measurement on one of its ranks."""

    def __init__(
        self, benchmark: Benchmark, launch: Launch, device: torch.device, labels: dict[str, str], out: Path
    ) -> None:
        super().__init__(launch, out, read, write)
        self._benchmark, self._device, self._labels = benchmark, device, labels

    def document(
        self, status: Status, reason: str | None, diagnosis: Diagnosis | None, ranks: Ranks | None = None
    ) -> Result:
        """Make what every result of it holds. ranks: what they say of themselves, if they could."""
        config = {"device": self._device.type, **self._benchmark.config, "threads": torch.get_num_threads()}
        return Result(
            kind=self._benchmark.kind,
            status=status,
            reason=reason,
            told=diagnosis,
            labels=self._labels,
            config=config,
            ranks=self.launch.world_size,
            dtype=self._benchmark.dtype,
            transport=ranks.transport if ranks else None,
            provenance=provenance.collect(
                start=self.start,
                launcher=self.launch.launcher,
                hosts=ranks.hosts if ranks else (),
                devices=ranks.devices if ranks else [provenance.device_name(self._device)],
                clocks=ranks.clocks if ranks else (),
                bindings=self.bindings,
            ),
        )

    def finish(self, reason: str | None, ranks: Ranks | None, found: Mapping[str, Any]) -> Result:
        """Write the result on rank 0, and return it. reason: why it has failed. found: fields that were measured."""
        result = self.document("failed" if reason else "ok", reason, None, ranks).model_copy(update=found)
        if self.launch.rank == 0:
            self.succeed(result)
        self.end()
        return result


def run(
    benchmark: Benchmark, launch: Launch, *, device: str, timeouts: Timeouts, labels: dict[str, str], out: Path
) -> Result:
    """Measure and, on rank 0, write the result; one that has failed says why. Raises UsageError.

    A rank that stands still says so in the result, and ends.
    """
    target, timeout = choose_device(device, launch.local_rank), timedelta(seconds=timeouts.timeout_s)
    benchmark.check(launch, target)
    reporter = BenchReporter(benchmark, launch, target, labels, out)
    reporter.begin()
    found: dict[str, Any] = {}
    reason, ranks = None, None
    try:
        with all_ranks(
            launch, target, timeout, meeting_s=timeouts.meeting_timeout_s, listens=benchmark.between_ranks
        ) as met:
            reporter.bindings = met.bindings
            reporter.met = True
            comm = Comm(benchmark.lay_out(launch.world_size), timeout=timeout, device=target)
            reporter.roster = roster(comm)
            with watched(comm, timeouts.timeout_s, reporter.fail):
                try:
                    benchmark.measure(World(comm), found)
                except Unmeasurable as error:
                    reason = f"{benchmark.unmeasured}: {error}."
                ranks = everyones(comm, met.read_network)
                comm.barrier()
    except UsageError as error:
        reporter.report(error)
        raise
    except LOST as error:
        reason = f"{benchmark.lost}: {first_line(error)}."
    return reporter.finish(reason, ranks, found)
