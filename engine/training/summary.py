"""Make what only the result of a whole run has; failure.py makes what every result has, and writes it."""

from collections.abc import Iterable
from statistics import median
from typing import Any

from engine.models.flops import model_flops, repeated_flops
from engine.profiling.session import write_chrome_trace
from engine.result import metrics
from engine.result.schema import Iteration, Memory, Summary
from engine.result.schema.step import LossScaling, Timeline
from engine.training.checks import CheckedRun
from engine.training.gathered import collectives, timeline
from engine.training.iterations import Measurements
from engine.training.loss_scale import LossScale


def run_fields(run: CheckedRun, measurements: Measurements, memory: Memory) -> dict[str, Any]:
    """Make these fields of the result, and write the timeline to a file if one is asked for. memory: of the ranks."""
    gathered = ("prefetch_bytes", "cached_blocks", "cache_bytes")
    return {
        "summary": _summary(run, measurements),
        "memory": memory.model_copy(update={name: getattr(measurements, name) for name in gathered}),
        "collectives": collectives(measurements.recording),
        "breakdown": measurements.breakdown,
        "energy": measurements.energy,
        "timeline": _timeline(run, measurements),
        "profile": measurements.profile,
    }


def loss_scaling(scale: LossScale | None, iterations: Iterable[Iteration]) -> LossScaling | None:
    """Say how the loss was scaled; None in other formats than fp16. scale: after the last of these iterations."""
    if scale is None:
        return None
    skipped = tuple(iteration.index for iteration in iterations if iteration.skipped)
    return LossScaling(scale=scale.value, skipped=scale.skipped, skipped_iterations=skipped)


def _timeline(run: CheckedRun, measurements: Measurements) -> Timeline | None:
    """Give the last counted iteration, and write it as a Chrome trace; None if that isn't asked for."""
    path = run.config.timeline
    if path is None:
        return None
    last = next(iteration for iteration in reversed(measurements.iterations) if iteration.counted)
    about = {"grid": str(run.grid), "overlap": str(run.training.overlap), "iteration": last.index}
    write_chrome_trace(path, measurements.recording.events, rank=0, about=about)
    return timeline(last, measurements.recording)


def _summary(run: CheckedRun, measurements: Measurements) -> Summary:
    training, config, ranks = run.training, run.config, run.grid.size
    times = [i.time_s for i in measurements.iterations if i.counted]
    time_s = metrics.time_per_iteration(times)
    network, sequences, recompute = training.model, training.batch.sequences, training.checkpoint_activations
    hardware = metrics.rate(training.flops, time_s)
    model = metrics.rate(model_flops(network, sequences), time_s)
    repeated = metrics.rate(repeated_flops(network, sequences, run.grid, recompute=recompute), time_s)
    measured = measurements.peak_flops_per_s
    advertised, empirical = config.peak_flops, measured or config.empirical_peak_flops
    return Summary(
        counted_iterations=len(times),
        time_per_iteration_s=time_s,
        median_time_s=median(times),
        tokens_per_s=metrics.rate(sequences * network.sequence, time_s),
        samples_per_s=metrics.rate(sequences, time_s),
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
