"""Cut and schedule of a pipeline by its options, the same for engine, memory model and simulation. No torch.

The fastest of several schedules is that whose simulated step takes the least time. Many micro-batches are like a few
and some more, and a schedule that can't become the fastest is played no further.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain
from math import inf
from statistics import fmean
from typing import NamedTuple, Self, TypeVar

from engine.errors import UsageError
from engine.models.architecture import Architecture
from engine.models.flops import split_step_flops
from engine.overlap.tasks import Direction, StepSchedule
from engine.pipeline.cut import Cut, cut_by_hand, cut_evenly
from engine.pipeline.registry import AUTO, PipelineOptions, ScheduleChoice, candidates
from engine.pipeline.simulation import LateError, PipelineStep, Times, Transit, alike, least_of_pass, play, times_of

TRANSIT = 0.05
"""Time of a message where no machine is known, as a part of a stage's forward."""
PLAYED = 4, 8
"""Micro-batches a stage that are played at most; all others are like those by which these differ."""
AS_FAST = 0.005
"""Share by which steps differ that count as equally fast, as simulations are no more exact: of those the first is
taken, whose order is known where one of theirs is, as waiting for messages has a cost.
"""
Choice = TypeVar("Choice")


@dataclass(frozen=True, slots=True)
class Staged:
    """A network cut into stages, and what they do when."""

    cut: Cut
    schedule: StepSchedule
    choice: ScheduleChoice
    """The schedule's name and settings."""


@cache
def staged(options: PipelineOptions, model: Architecture, stages: int, passes: int, *, recomputed: int) -> Staged:
    """Cut the network and choose the schedule. Raises UsageError for what can't be.

    recomputed: blocks, the first ones, that run forward once more in the backward.
    """
    choice = ScheduleChoice(options.schedule, options.pipeline_limit, options.weight_limit, options.chunks)
    if choice.name == AUTO and choice.settings:
        given = " and ".join(choice.settings)
        raise UsageError(f"--schedule auto chooses {given} itself: leave that out, or name another --schedule.")
    if stages == 1:
        return _whole(options, model, choice)
    if model.layers < stages:
        cut_evenly(model, stages, recomputed=recomputed)  # which says so
    if choice.name == AUTO:
        times = partial(times_by_flops, model=model, stages=stages, recomputed=recomputed)
        choice = fastest(candidates(stages, passes, model.layers), stages, passes, times)[0]
    schedule = choice.make()
    schedule.check(stages, passes)
    if options.stages is not None:
        cut = cut_by_hand(options.stages, model, stages, schedule.chunks)
    else:
        cut = cut_evenly(model, stages, schedule.chunks, recomputed=recomputed)
    return Staged(cut, schedule, choice)


def _whole(options: PipelineOptions, model: Architecture, choice: ScheduleChoice) -> Staged:
    if options.stages is not None:
        raise UsageError(f"--stages {options.stages} cuts a network, but the grid has one stage: give --pipe N, too.")
    if choice.name == AUTO:
        choice = ScheduleChoice("one-by-one")
    schedule = choice.make()
    if schedule.chunks > 1:
        raise UsageError(f"--schedule {choice.name} needs 2 stages or more: give --pipe N, or another --schedule.")
    return Staged(Cut.none(model.layers), schedule, choice)


def times_by_flops(schedule: StepSchedule, model: Architecture, stages: int, *, recomputed: int) -> Times:
    """Return the times of a stage's tasks, a mean forward of all stages taking 1."""
    cut = cut_evenly(model, stages, schedule.chunks, recomputed=recomputed)
    before, of_blocks, after = split_step_flops(model, recomputed=0)
    mean = (before + sum(of_blocks) + after) / stages

    def part_s(stage: int, direction: Direction) -> float:
        numbers = list(chain(*cut.blocks[stage]))
        blocks = sum(of_blocks[number] for number in numbers)
        around = before * (stage == 0) + after * (stage == stages - 1)
        backward = direction is Direction.BACKWARD
        again = sum(of_blocks[number] for number in numbers if number < recomputed) if backward else 0
        return (blocks + around + again) / mean

    return times_of(schedule, part_s, lambda stage, direction: Transit(0.0, TRANSIT))


class StepTime(NamedTuple):
    """Time of a step of a pipeline."""

    time_s: float
    busy_s: float
    """time in which a stage works, the mean of all stages"""

    @classmethod
    def of(cls, step: PipelineStep) -> Self:
        return cls(step.time_s, fmean(step.busy_s))


def fastest(
    allowed: Mapping[ScheduleChoice, StepSchedule],
    stages: int,
    passes: int,
    times: Callable[[StepSchedule], Times],
    by_s: float = inf,
) -> tuple[ScheduleChoice, StepTime]:
    """Find the schedule whose step takes the least time, of those that are AS_FAST the first, and that time.

    times: as a schedule's tasks take, of every micro-batch alike. by_s: the time is infinite if all take more seconds.
    """

    def promise(item: tuple[ScheduleChoice, StepSchedule]) -> tuple[bool, float]:
        """Order by what is mostly faster: to defer weight gradients, and to keep much."""
        return item[1].deferring, sum(item[1].live_passes(0, stages, passes)) / item[1].chunks

    found: dict[ScheduleChoice, StepTime] = {}
    for choice, schedule in sorted(allowed.items(), key=promise, reverse=True):
        by_s = min((by_s, *(step.time_s for step in found.values())))
        found[choice] = step_time(schedule, stages, passes, times(schedule), by_s)
    choice = first_fastest({choice: found[choice].time_s for choice in allowed})
    return choice, found[choice]


def first_fastest(times_s: Mapping[Choice, float]) -> Choice:
    """Find the first whose time is at most a share of AS_FAST longer than the least."""
    least_s = min(times_s.values())
    return next(choice for choice, time_s in times_s.items() if time_s <= least_s * (1 + AS_FAST))


def step_time(schedule: StepSchedule, stages: int, passes: int, times: Times, by_s: float = inf) -> StepTime:
    """Return the time of a step of so many micro-batches that are alike; infinity if it takes more than by_s seconds.

    Beyond PLAYED another micro-batch takes no less than the busiest stage's work on it.
    """
    times = alike(times)
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
