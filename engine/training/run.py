"""One `engine train`: connect, train, and leave one result.json whatever happens.

Rank 0 writes a failed result before the first iteration, which the outcome replaces, so that even a run that is killed
has said so. Of several failing ranks the one with a reason of its own wins over those that only lost contact.
"""

import logging
import os
import signal
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from statistics import mean, median
from types import FrameType
from typing import Literal

import torch
import torch.distributed as dist

from engine.comm.funnel import Comm
from engine.comm.launch import Launch, choose_device, init_process_group
from engine.errors import EngineError, RunError
from engine.grid import Grid
from engine.measure import chrome_trace
from engine.measure.memory import keep_freed_memory, peak_bytes
from engine.measure.recorder import AxisSeconds, PhaseSeconds, Recorder, Recording
from engine.models.gpt import flops
from engine.planning.fit import parameters_per_rank
from engine.result import provenance
from engine.result.schema import (
    AxisTime,
    Breakdown,
    Collective,
    Memory,
    Model,
    Phase,
    Result,
    Span,
    Summary,
    Timeline,
    read,
    write,
)
from engine.training.config import TrainConfig
from engine.training.trainer import Diverged, Measured, Trainer, run_iterations

log = logging.getLogger(__name__)

UNFINISHED = "The run ended before it could write its result: it was killed, or its time limit passed."
NAME_BYTES = 256


class Terminated(RunError):
    """The launcher or the scheduler asked this rank to end, because another one failed or time is up."""


def train(config: TrainConfig, launch: Launch) -> int:
    """Run a checked configuration on this rank; returns the exit code: 0, or 1 with a failed result."""
    device = choose_device(config.device, launch.local_rank)
    outcome = Outcome(config, launch, device)

    def terminated(number: int, frame: FrameType | None) -> None:
        # An exception from here could end up anywhere, in a logging call for one, and be swallowed.
        outcome.write_failure(Terminated(f"Rank {launch.rank} was told to end by {signal.Signals(number).name}."))
        os._exit(1)

    signal.signal(signal.SIGTERM, terminated)
    if device.type == "cpu":
        keep_freed_memory()
    try:
        if launch.rank == 0:
            write(outcome.failed(UNFINISHED), config.out)
        init_process_group(launch, device, timedelta(seconds=config.timeout_s))
        outcome.connected = True
        recorder = Recorder.on(device, breakdown=True)
        comm = Comm(_grid(config), timeout=timedelta(seconds=config.timeout_s), recorder=recorder, device=device)
        run_iterations(Trainer(config, comm, recorder), outcome.measured)
        ranks = everyones(comm)
        if launch.rank == 0:
            write(outcome.succeeded(ranks), config.out)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        comm.barrier()
        dist.destroy_process_group()
    except Exception as error:
        outcome.write_failure(error)
        return 1
    return 0


def _grid(config: TrainConfig) -> Grid:
    assert config.grid is not None
    return config.grid


@dataclass(frozen=True, slots=True)
class Ranks:
    """What every rank says of itself, in rank order."""

    memory: Memory
    hosts: list[str]
    devices: list[str]


def everyones(comm: Comm) -> Ranks:
    """Ask every rank for its peak memory, host and device. Collective."""
    kind, peak = peak_bytes(comm.device)
    peaks = comm.everyone(torch.tensor([peak], dtype=torch.int64)).flatten().tolist()
    hosts = _texts(comm, socket.gethostname())
    devices = _texts(comm, provenance.device_name(comm.device))
    return Ranks(Memory(kind=kind, peak_bytes_per_rank=tuple(peaks)), hosts, devices)


def collectives(recording: Recording) -> tuple[Collective, ...]:
    """Of one iteration, on average."""
    return tuple(
        Collective(
            kind=kind,
            axis=axis,
            calls=tally.calls / recording.steps,
            bytes=tally.num_bytes / recording.steps,
            time_s=tally.time_s / recording.steps,
        )
        for (kind, axis), tally in sorted(recording.tallies.items())
    )


def breakdown(recording: Recording) -> Breakdown:
    """Of one iteration, on average."""
    steps = recording.steps
    exposed_s = sum(axis.exposed_s for axis in recording.axes.values())

    def means(times: PhaseSeconds | AxisSeconds) -> dict[str, float]:
        return {name: value / steps for name, value in asdict(times).items()}

    return Breakdown(
        compute_s=(recording.time_s - exposed_s) / steps,
        collectives_s=exposed_s / steps,
        axes=tuple(AxisTime(axis=axis, **means(times)) for axis, times in sorted(recording.axes.items())),
        phases=tuple(Phase(name=name, **means(times)) for name, times in recording.phases.items()),
    )


class Outcome:
    """Turns what a run measured, or why it failed, into its result.

    connected: whether the ranks have met, and so whether rank 0's failed result of this run is there to be amended.
    """

    def __init__(self, config: TrainConfig, launch: Launch, device: torch.device) -> None:
        self._config, self._launch, self._device = config, launch, device
        self._start = provenance.now()
        self.measured = Measured()
        self.connected = False

    def failed(self, reason: str) -> Result:
        """A failed result with the iterations so far."""
        return self._result("failed", reason, [socket.gethostname()], [provenance.device_name(self._device)])

    def succeeded(self, ranks: Ranks) -> Result:
        """The result of a whole run."""
        measured = self.measured
        memory = ranks.memory.model_copy(
            update={
                "prefetch_bytes": measured.prefetch_bytes,
                "cached_blocks": measured.cached_blocks,
                "cache_bytes": measured.cache_bytes,
            }
        )
        return self._result("ok", None, ranks.hosts, ranks.devices).model_copy(
            update={
                "summary": self._summary(),
                "memory": memory,
                "collectives": collectives(measured.recording),
                "breakdown": breakdown(measured.recording),
                "timeline": self._timeline() if self._config.timeline is not None else None,
            }
        )

    def _timeline(self) -> Timeline:
        """The last iteration; written as a Chrome trace too."""
        last, events = self.measured.iterations[-1], self.measured.recording.events
        path = self._config.timeline
        assert path is not None
        about = {"grid": str(self._config.grid), "overlap": str(self._config.overlap), "iteration": last.index}
        chrome_trace.write(path, events, rank=self._launch.rank, about=about)
        spans = tuple(Span(**asdict(event)) for event in events)
        return Timeline(iteration=last.index, step_s=last.time_s, spans=spans)

    def write_failure(self, error: Exception) -> None:
        """Log the failure and write it, unless another rank already gave a reason of its own."""
        told = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        step = len(self.measured.iterations)
        reason = told if isinstance(error, RunError) else f"Rank {self._launch.rank} failed in iteration {step}: {told}"
        if not isinstance(error, EngineError):
            log.error("", exc_info=error)
        log.error("%s", reason)
        if isinstance(error, Diverged) and self._launch.rank:
            return  # all ranks see it, rank 0 writes it
        own = isinstance(error, EngineError | torch.OutOfMemoryError | MemoryError | OSError)
        own = own and not isinstance(error, Terminated)
        with suppress(EngineError, OSError):
            if not self.connected:
                write(self.failed(reason), self._config.out)
                return
            present = read(self._config.out)
            if present.status == "failed" and (own or present.reason == UNFINISHED):
                iterations = tuple(self.measured.iterations)
                write(present.model_copy(update={"reason": reason, "iterations": iterations}), self._config.out)

    def _summary(self) -> Summary:
        config, ranks = self._config, self._launch.world_size
        times = [i.time_s for i in self.measured.iterations if not i.warmup]
        time_s = mean(times)
        sequences = config.batch.sequences
        hardware = flops.hardware_flops(config.model, sequences, recompute=config.checkpoint_activations)
        model = flops.model_flops(config.model, sequences)
        repeated = flops.repeated_flops(config.model, sequences, _grid(config), recompute=config.checkpoint_activations)
        peak = config.peak_flops
        return Summary(
            counted_iterations=len(times),
            time_per_iteration_s=time_s,
            median_time_s=median(times),
            tokens_per_s=sequences * config.model.sequence / time_s,
            hardware_flops_per_s=hardware / time_s,
            model_flops_per_s=model / time_s,
            repeated_flops_per_s=repeated / time_s,
            peak_flops_per_device=peak,
            hfu=flops.utilisation(hardware, time_s, ranks, peak) if peak else None,
            mfu=flops.utilisation(model, time_s, ranks, peak) if peak else None,
        )

    def _result(
        self, status: Literal["ok", "failed"], reason: str | None, hosts: list[str], devices: list[str]
    ) -> Result:
        config, model = self._config, self._config.model
        return Result(
            kind="train",
            status=status,
            reason=reason,
            labels=dict(config.labels),
            config=config.as_options(),
            ranks=self._launch.world_size,
            grid=str(_grid(config)),
            model=Model(
                name=model.name,
                layers=model.layers,
                hidden=model.hidden,
                heads=model.heads,
                vocabulary=model.vocabulary,
                sequence=model.sequence,
                parameters=model.parameters,
                parameters_per_rank=parameters_per_rank(model, _grid(config)),
            ),
            iterations=tuple(self.measured.iterations),
            dtype=config.precision,
            provenance=provenance.collect(
                start=self._start, launcher=self._launch.launcher, hosts=hosts, devices=devices
            ),
        )


def _texts(comm: Comm, text: str) -> list[str]:
    """A short text of every rank, in rank order."""
    encoded = text.encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
    rows = comm.everyone(torch.frombuffer(bytearray(encoded), dtype=torch.uint8))
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in rows.tolist()]
