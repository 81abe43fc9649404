"""Which schedules may AUTO choose from? Where a device's memory is known, those for whose passes it has room. No torch.

All ranks of a job come to the same: what is free follows from the formulas, no device is asked.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from math import inf

from engine.footprint.memory import Footprint, Needs, usable
from engine.grid import Grid
from engine.pipeline.options import PipelineOptions
from engine.pipeline.registry import ScheduleChoice, candidates
from engine.pipeline.staged import fastest, times_by_flops
from engine.training_record import Training

MOST = 2.0
"""So many times the passes of 1F1B are kept at most, however much memory is free."""


def allowed(
    training: Training, grid: Grid, device_memory: float | None, device: str = "cuda"
) -> Mapping[ScheduleChoice, Needs]:
    """List what AUTO chooses from on a grid of several stages, with what a rank needs.

    It is every schedule whose step leaves of a device's memory what is to be free: up to MOST times the passes of 1F1B,
    and with stages as a person has cut them none that cuts these, too. Where there is none, or memory is unknown, it is
    those that keep no more passes than 1F1B does, if they can be at all within the whole memory.
    """
    stages, passes, layers = grid.stages, training.passes(grid), training.model.layers
    some = candidates(stages, passes, layers, MOST if device_memory else 1.0)
    found = {
        choice: Footprint(named(training, choice), device).on(grid)
        for choice, one in some.items()
        if one.chunks == 1 or training.pipeline.stages is None
    }
    few = {choice: found[choice] for choice in candidates(stages, passes, layers) if choice in found}
    for those, most in ((found, usable(device_memory)), (few, device_memory or inf)):
        if fit := {choice: needs for choice, needs in those.items() if needs.total <= most}:
            return fit
    return few


def settled(training: Training, grid: Grid, device_memory: float, device: str = "cuda") -> Training:
    """Put the schedule that a device's memory allows, and that is the fastest by flops, for AUTO alone."""
    if grid.stages == 1 or training.pipeline != PipelineOptions(stages=training.pipeline.stages):
        return training
    return named(training, by_flops(training, grid, allowed(training, grid, device_memory, device)))


def by_flops(training: Training, grid: Grid, choices: Iterable[ScheduleChoice]) -> ScheduleChoice:
    """Find the fastest of these by the flops of each stage."""
    model, stages, passes = training.model, grid.stages, training.passes(grid)
    times = partial(times_by_flops, model=model, stages=stages, recompute=training.checkpoint_activations)
    return fastest({choice: choice.make() for choice in choices}, stages, passes, times)[0]


def named(training: Training, choice: ScheduleChoice) -> Training:
    """Give the same training by a schedule."""
    return replace(training, pipeline=choice.options(training.pipeline.stages))
