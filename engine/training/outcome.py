"""What a run's outcome says: its result, or why it failed; and what every rank says of itself."""

import logging
import socket
from contextlib import suppress
from dataclasses import asdict
from statistics import median
from typing import Literal

import torch

from engine.comm.launch import Launch
from engine.errors import EngineError, RunError
from engine.measure import chrome_trace
from engine.models.architecture import hardware_flops, model_flops, repeated_flops
from engine.planning.fit import parameters_per_rank
from engine.result import metrics, provenance
from engine.result.schema import Model, Result, Summary, read, write
from engine.result.step import Breakdown, Span, Timeline
from engine.training.config import Plan
from engine.training.gathered import Ranks, collectives
from engine.training.trainer import Diverged, Measurements

log = logging.getLogger(__name__)

UNFINISHED = "The run ended before it could write its result: it was killed, or its time limit passed."


class Terminated(RunError):
    """The launcher or the scheduler asked this rank to end, because another one failed or time is up."""


class Outcome:
    """Turns what a run measured, or why it failed, into its result.

    connected: whether the ranks have met, and so whether rank 0's failed result of this run is there to be amended.
    """

    def __init__(self, plan: Plan, launch: Launch, device: torch.device) -> None:
        self._plan, self._launch, self._device = plan, launch, device
        self._start = provenance.now()
        self.measurements = Measurements()
        self.connected = False

    def failed(self, reason: str) -> Result:
        """A failed result with the iterations so far."""
        return self._result("failed", reason, [socket.gethostname()], [provenance.device_name(self._device)])

    def succeeded(self, ranks: Ranks, breakdown: Breakdown | None) -> Result:
        """The result of a whole run."""
        measurements = self.measurements
        memory = ranks.memory.model_copy(
            update={
                "prefetch_bytes": measurements.prefetch_bytes,
                "cached_blocks": measurements.cached_blocks,
                "cache_bytes": measurements.cache_bytes,
            }
        )
        return self._result("ok", None, ranks.hosts, ranks.devices).model_copy(
            update={
                "summary": self._summary(),
                "memory": memory,
                "collectives": collectives(measurements.recording),
                "breakdown": breakdown,
                "timeline": self._timeline() if self._plan.config.timeline is not None else None,
            }
        )

    def _timeline(self) -> Timeline:
        """The last iteration; written as a Chrome trace too."""
        last, events = self.measurements.iterations[-1], self.measurements.recording.events
        path = self._plan.config.timeline
        assert path is not None
        about = {"grid": str(self._plan.grid), "overlap": str(self._plan.config.overlap), "iteration": last.index}
        chrome_trace.write(path, events, rank=self._launch.rank, about=about)
        spans = tuple(Span(**asdict(event)) for event in events)
        return Timeline(iteration=last.index, step_s=last.time_s, spans=spans)

    def write_failure(self, error: Exception) -> None:
        """Log the failure and write it, unless another rank already gave a reason of its own."""
        told = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        step = len(self.measurements.iterations)
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
                write(self.failed(reason), self._plan.config.out)
                return
            present = read(self._plan.config.out)
            if present.status == "failed" and (own or present.reason == UNFINISHED):
                iterations = tuple(self.measurements.iterations)
                write(present.model_copy(update={"reason": reason, "iterations": iterations}), self._plan.config.out)

    def _summary(self) -> Summary:
        plan, config, ranks = self._plan, self._plan.config, self._launch.world_size
        times = [i.time_s for i in self.measurements.iterations if not i.warmup]
        time_s = metrics.time_per_iteration(times)
        sequences = config.batch.sequences
        recompute = config.checkpoint_activations
        hardware = metrics.rate(hardware_flops(plan.model, sequences, recompute=recompute), time_s)
        model = metrics.rate(model_flops(plan.model, sequences), time_s)
        repeated = metrics.rate(repeated_flops(plan.model, sequences, plan.grid, recompute=recompute), time_s)
        measured = self.measurements.peak_flops_per_s
        advertised, empirical = config.peak_flops, measured or config.empirical_peak_flops
        return Summary(
            counted_iterations=len(times),
            time_per_iteration_s=time_s,
            median_time_s=median(times),
            tokens_per_s=metrics.rate(sequences * plan.model.sequence, time_s),
            hardware_flops_per_s=hardware,
            model_flops_per_s=model,
            repeated_flops_per_s=repeated,
            peak_flops_per_device=advertised,
            hfu=metrics.utilisation(hardware, ranks, advertised) if advertised else None,
            mfu=metrics.utilisation(model, ranks, advertised) if advertised else None,
            empirical_peak_flops_per_device=empirical,
            empirical_peak_measured=measured is not None,
            of_empirical=metrics.utilisation(hardware, ranks, empirical) if empirical else None,
        )

    def _result(
        self, status: Literal["ok", "failed"], reason: str | None, hosts: list[str], devices: list[str]
    ) -> Result:
        plan, config, model = self._plan, self._plan.config, self._plan.model
        return Result(
            kind="train",
            status=status,
            reason=reason,
            labels=dict(config.labels),
            config=plan.as_options() | {"device": self._device.type, "threads": torch.get_num_threads()},
            ranks=self._launch.world_size,
            grid=str(plan.grid),
            model=Model(
                name=model.name,
                family=model.family,
                layers=model.layers,
                hidden=model.hidden,
                heads=model.heads,
                vocabulary=model.vocabulary,
                sequence=model.sequence,
                parameters=model.parameters,
                parameters_per_rank=parameters_per_rank(model, plan.grid),
            ),
            iterations=tuple(self.measurements.iterations),
            dtype=config.precision,
            provenance=provenance.collect(
                start=self._start, launcher=self._launch.launcher, hosts=hosts, devices=devices
            ),
        )
