"""Of several schedules the one is found whose simulated step takes the least time. No torch.

Many micro-batches are like a few and some more, and who can't become the fastest is played no further.
"""

from collections.abc import Callable, Mapping
from math import inf

from engine.overlap.tasks import StepSchedule
from engine.pipeline.registry import ScheduleChoice
from engine.pipeline.simulation import LateError, Times, least_of_pass, play

PLAYED = 4, 8
"""So many micro-batches a stage are played at most; all others are like those by which these differ."""
AS_FAST = 0.005
"""Steps that differ by a smaller share count as equally fast, as simulations are no more exact. Of those the first is
taken, whose order is known where one of theirs is: who depends on what comes has to look out for it.
"""


def fastest(
    allowed: Mapping[ScheduleChoice, StepSchedule], stages: int, passes: int, times: Callable[[StepSchedule], Times]
) -> tuple[ScheduleChoice, float]:
    """Find the schedule whose step takes the least time, of those that are AS_FAST the first, and that time.

    times: as a schedule's tasks take, of every micro-batch alike.
    """

    def promise(item: tuple[ScheduleChoice, StepSchedule]) -> tuple[bool, float]:
        """Order by what is mostly faster: to defer weight gradients, and to keep much."""
        return item[1].deferring, sum(item[1].held(0, stages, passes)) / item[1].chunks

    times_s: dict[ScheduleChoice, float] = {}
    for choice, schedule in sorted(allowed.items(), key=promise, reverse=True):
        by_s = min(times_s.values(), default=inf)
        times_s[choice] = step_s(schedule, stages, passes, times(schedule), by_s)
    least_s = min(times_s.values())
    choice = next(choice for choice in allowed if times_s[choice] <= least_s * (1 + AS_FAST))
    return choice, times_s[choice]


def step_s(schedule: StepSchedule, stages: int, passes: int, times: Times, by_s: float = inf) -> float:
    """Give the seconds of a step of so many micro-batches that are alike; infinity if they are more than by_s.

    Beyond PLAYED another micro-batch takes no less than the busiest stage's work on it.
    """
    few, more = (count * stages for count in PLAYED)
    least_s, rest, by_s = max(least_of_pass(schedule, stages, times)), passes - few, by_s * (1 + AS_FAST)
    try:
        if passes <= more:
            return play(schedule, stages, passes, times, by_s).time_s
        few_s = play(schedule, stages, few, times, by_s - rest * least_s).time_s
        by_s = few_s + (by_s - few_s) * (more - few) / rest
        more_s = play(schedule, stages, more, times, by_s).time_s
    except LateError:
        return inf
    return few_s + rest * max((more_s - few_s) / (more - few), least_s)
