"""Memory of a rank by the trace of its step, which knows every tensor to the byte."""

from dataclasses import replace

from engine.batch import Batch
from engine.footprint.fit import lacking_memory
from engine.footprint.memory import Footprint, Needs
from engine.grid import CUTTING_STAGES, Grid
from engine.overlap.flags import AUTO
from engine.tracing.predict import trace_network
from engine.tracing.step import trace
from engine.training_record import Training

PASSES_A_STAGE = 3
"""Micro-batches that are traced of a pipeline, for each of its stages: more than any schedule keeps but GPipe's."""


def needs_by_trace(training: Training, grid: Grid, peak_bytes: float, device: str = "cuda") -> Needs:
    """Return a trace's peak by its parts, with what the device and its libraries take otherwise than the meta device.

    The parts are those of the coarse count, whose error counts as activations.
    """
    count, on_meta = Footprint(training, device).on(grid), Footprint(training, "meta").on(grid)
    return replace(count, activations=count.activations + peak_bytes - on_meta.total)


def trace_needs(training: Training, grid: Grid, device: str = "cuda", device_memory: float | None = None) -> Needs:
    """Trace what a rank of the grid needs in a step, of a pipeline the one that needs most by the coarse count."""
    if grid.stages == 1:
        peak = trace_network(training, grid, device_memory=device_memory).peak_bytes
        return needs_by_trace(training, grid, peak, device)
    stage, _ = max(Footprint(training, device).of_stages(grid), key=lambda needs: needs[1].total)
    micro, few = training.batch.at_once(grid), training
    if training.pipeline.schedule != "gpipe":
        passes = min(training.passes(grid), PASSES_A_STAGE * grid.stages)
        few = replace(training, batch=Batch(passes * micro * grid.batch_split, micro))
    if training.overlap.cache == AUTO:
        few = replace(few, overlap=replace(few.overlap, cache=0))
    found = trace(few, grid, stage * grid.stride(CUTTING_STAGES))
    return needs_by_trace(training, grid, found.peak_bytes, device)


def check_memory(training: Training, grid: Grid, device_memory: float, device: str = "cuda") -> None:
    """Raise UsageError if a step needs more than a device's memory (bytes) by its trace."""
    needs = trace_needs(training, grid, device)
    if needs.total > device_memory:
        raise lacking_memory(training, grid, needs, device_memory)
