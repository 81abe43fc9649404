"""Of several schedules the one is found whose simulated step takes the least time. No torch.

Many micro-batches are like a few and some more, and who can't become the fastest is played no further.
"""

from collections.abc import Callable, Mapping
from math import inf
from statistics import fmean
from typing import NamedTuple, Self, TypeVar

from engine.overlap.tasks import StepSchedule
from engine.pipeline.registry import ScheduleChoice
from engine.pipeline.simulation import LateError, PipelineStep, Times, least_of_pass, play

PLAYED = 4, 8
"""So many micro-batches a stage are played at most; all others are like those by which these differ."""
AS_FAST = 0.005
"""Steps that differ by a smaller share count as equally fast, as simulations are no more exact. Of those the first is
taken, whose order is known where one of theirs is: who depends on what comes has to look out for it.
"""
Choice = TypeVar("Choice")


class StepTime(NamedTuple):
    """It is how long a step of a pipeline takes. busy_s: in which a stage works, the mean of all stages."""

    time_s: float
    busy_s: float

    @classmethod
    def of(cls, step: PipelineStep) -> Self:
        return cls(step.time_s, fmean(step.busy_s))


def fastest(
    allowed: Mapping[ScheduleChoice, StepSchedule], stages: int, passes: int, times: Callable[[StepSchedule], Times]
) -> tuple[ScheduleChoice, StepTime]:
    """Find the schedule whose step takes the least time, of those that are AS_FAST the first, and that time.

    times: as a schedule's tasks take, of every micro-batch alike.
    """

    def promise(item: tuple[ScheduleChoice, StepSchedule]) -> tuple[bool, float]:
        """Order by what is mostly faster: to defer weight gradients, and to keep much."""
        return item[1].deferring, sum(item[1].held(0, stages, passes)) / item[1].chunks

    found: dict[ScheduleChoice, StepTime] = {}
    for choice, schedule in sorted(allowed.items(), key=promise, reverse=True):
        by_s = min((step.time_s for step in found.values()), default=inf)
        found[choice] = step_time(schedule, stages, passes, times(schedule), by_s)
    choice = as_fast({choice: found[choice].time_s for choice in allowed})
    return choice, found[choice]


def as_fast(times_s: Mapping[Choice, float]) -> Choice:
    """Find the first whose time is at most a share of AS_FAST longer than the least."""
    least_s = min(times_s.values())
    return next(choice for choice, time_s in times_s.items() if time_s <= least_s * (1 + AS_FAST))


def step_time(schedule: StepSchedule, stages: int, passes: int, times: Times, by_s: float = inf) -> StepTime:
    """Give the time of a step of so many micro-batches that are alike; infinity if it takes more than by_s seconds.

    Beyond PLAYED another micro-batch takes no less than the busiest stage's work on it.
    """
    few, more = (count * stages for count in PLAYED)
    least_s, rest, by_s = max(least_of_pass(schedule, stages, times)), passes - few, by_s * (1 + AS_FAST)
    try:
        if passes <= more:
            return StepTime.of(play(schedule, stages, passes, times, by_s))
        first = StepTime.of(play(schedule, stages, few, times, by_s - rest * least_s))
        by_s = first.time_s + (by_s - first.time_s) * (more - few) / rest
        longer = StepTime.of(play(schedule, stages, more, times, by_s))
    except LateError:
        return StepTime(inf, inf)
    pass_s, busy_s = ((later - earlier) / (more - few) for later, earlier in zip(longer, first, strict=True))
    return StepTime(first.time_s + rest * max(pass_s, least_s), first.busy_s + rest * busy_s)
