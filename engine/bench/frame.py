"""Frame of all benchmarks: ranks meet on their devices, are watched while they work, and write a result."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from engine.bench.benchmark import Benchmark
from engine.bench.world import LOST, Unmeasurable, World, first_line
from engine.comm.funnel import Comm
from engine.comm.launch import Launch, choose_device
from engine.comm.meeting import all_ranks
from engine.errors import UsageError
from engine.reporter import Reporter, Status
from engine.result import provenance
from engine.result.schema import Diagnosis, Result, read, write
from engine.timeouts import Timeouts
from engine.training.gathered import Ranks, everyones, roster
from engine.training.stall import watched


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
            comm = Comm(benchmark.laid_out(launch.world_size), timeout=timeout, device=target)
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
