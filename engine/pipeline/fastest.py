"""Of several schedules the one is chosen that a simulation finds fastest among those that memory allows. No torch."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from engine.errors import UsageError
from engine.overlap.tasks import StepSchedule
from engine.pipeline.simulation import PipelineStep, Times, play

Key = TypeVar("Key")


def kept_bytes(
    schedule: StepSchedule, stage: int, stages: int, passes: int, held_bytes: float, pending_bytes: float
) -> float:
    """Bound what a stage keeps of micro-batches. held_bytes: of one until its backward. pending_bytes: of one from then
    until its weight task.
    """
    held, pending = schedule.held(stage, stages, passes)
    return (held * held_bytes + pending * max(held_bytes, pending_bytes)) / schedule.chunks


def fastest(
    candidates: Mapping[Key, StepSchedule],
    stages: int,
    passes: int,
    times: Callable[[StepSchedule], Times],
    fits: Callable[[StepSchedule], bool],
) -> tuple[Key, PipelineStep]:
    """Find the candidate whose simulated step is the shortest, of equal ones the first, and its step.

    times: as a schedule's tasks take. fits: whether memory allows a schedule. Raises UsageError if it allows none.
    """
    steps = {key: play(one, stages, passes, times(one)) for key, one in candidates.items() if fits(one)}
    if not steps:
        raise UsageError(
            f"Memory allows no schedule with {stages} stages and {passes} micro-batches: give a smaller micro-batch."
        )
    return min(steps.items(), key=lambda found: found[1].time_s)
