"""Options become a cut and a schedule, the same ones for the engine, the memory model and the simulation. No torch."""

from dataclasses import dataclass
from functools import cache, partial
from itertools import chain

from engine.errors import UsageError
from engine.models.architecture import Architecture
from engine.models.flops import split_step_flops
from engine.overlap.tasks import Direction, StepSchedule
from engine.pipeline.cut import Cut, cut_by_hand, cut_evenly
from engine.pipeline.fastest import fastest
from engine.pipeline.options import PipelineOptions
from engine.pipeline.registry import AUTO, ScheduleChoice, candidates
from engine.pipeline.simulation import Times, Transit, times_of

TRANSIT = 0.05
"""A message is taken to need this part of a stage's forward, where no machine is known."""


@dataclass(frozen=True, slots=True)
class Staged:
    """It is a network cut into stages, with what they do when. choice: the schedule's name and settings."""

    cut: Cut
    schedule: StepSchedule
    choice: ScheduleChoice


@cache
def staged(options: PipelineOptions, model: Architecture, stages: int, passes: int, *, recompute: bool) -> Staged:
    """Cut the network and choose the schedule, for so many micro-batches. Raises UsageError for what can't be.

    recompute: whether blocks run forward once more in the backward.
    """
    choice = ScheduleChoice(options.schedule, options.pipeline_limit, options.weight_limit, options.chunks)
    if choice.name == AUTO and choice.settings:
        given = " and ".join(choice.settings)
        raise UsageError(f"--schedule auto chooses {given} itself: leave that out, or name another --schedule.")
    if stages == 1:
        return _whole(options, model, choice)
    if model.layers < stages:
        cut_evenly(model, stages, recompute=recompute)  # which says so
    if choice.name == AUTO:
        choice = _fastest(model, stages, passes, recompute=recompute)
    schedule = choice.make()
    schedule.check(stages, passes)
    if options.stages is not None:
        cut = cut_by_hand(options.stages, model, stages, schedule.chunks)
    else:
        cut = cut_evenly(model, stages, schedule.chunks, recompute=recompute)
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


def _fastest(model: Architecture, stages: int, passes: int, *, recompute: bool) -> ScheduleChoice:
    """Choose by the flops of each stage."""
    times = partial(times_by_flops, model=model, stages=stages, recompute=recompute)
    return fastest(candidates(stages, passes, model.layers), stages, passes, times)[0]


def times_by_flops(schedule: StepSchedule, model: Architecture, stages: int, *, recompute: bool) -> Times:
    """Give the times of a stage's tasks, a mean forward of all stages taking 1."""
    cut = cut_evenly(model, stages, schedule.chunks, recompute=recompute)
    before, of_blocks, after = split_step_flops(model, recompute=False)
    mean = (before + sum(of_blocks) + after) / stages

    def part_s(stage: int, direction: Direction) -> float:
        blocks = sum(of_blocks[number] for number in chain(*cut.blocks[stage]))
        around = before * (stage == 0) + after * (stage == stages - 1)
        again = blocks if recompute and direction is Direction.BACKWARD else 0
        return (blocks + around + again) / mean

    return times_of(schedule, part_s, lambda stage, direction: Transit(0.0, TRANSIT))
