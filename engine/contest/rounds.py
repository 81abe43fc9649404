"""Contest of trainings, which take turns in the same processes, round by round.

A machine that gets slower with time, or a network that is shared with other jobs, disturbs all sides alike. Every side
has had its warm-up, in which the order of gathers is learnt and buffers are allocated, before the first round. No torch
and no pydantic before a contest is carried out.
"""

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from statistics import mean, median
from typing import TYPE_CHECKING, Annotated, Any, Self

from cyclopts import Group, Parameter

from engine.errors import UsageError
from engine.measure.rounds import shuffled, take_turns
from engine.output import RENEWED
from engine.training.checks import CheckedRun, ContestSetup
from engine.training.config import RunConfig, TrainConfig

if TYPE_CHECKING:
    from engine.measure.recorder import Recording
    from engine.result.schema import Iteration
    from engine.result.schema.contest import Ratio
    from engine.training.trainer import Trainer

log = logging.getLogger(__name__)

ROUNDS = Group("rounds: each side takes its steps in every one", sort_key=2)
DISTURBED = Group("disturbance: what a machine may do to a pipeline", sort_key=2.7)
OF_TRAIN_ALONE = {field.name for field in fields(TrainConfig)} - {field.name for field in fields(RunConfig)}


@Parameter(name="*", group=ROUNDS)
@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """How often each side is timed. Raises UsageError for numbers below 1."""

    rounds: int = 6
    """in each, every side has a turn, in another order"""
    steps: Annotated[int, Parameter(name="--steps-per-round")] = 2
    """of each turn"""
    warmup: int = 1
    """steps of each side before the first round"""
    end_within_s: Annotated[float | None, Parameter(name="--end-within")] = None
    """seconds from the start: no round is begun that would not be over by then, so that what is measured is kept"""

    def __post_init__(self) -> None:
        at_least_one = {"--rounds": self.rounds, "--steps-per-round": self.steps, "--warmup": self.warmup}
        for option, number in at_least_one.items():
            if number < 1:
                raise UsageError(f"{option} is at least 1, but {number} was given.")
        if self.end_within_s is not None and self.end_within_s <= 0:
            raise UsageError(f"--end-within is a number of seconds above 0, but {self.end_within_s:g} was given.")

    def ends_in_time(self, so_far_s: float, round_s: float) -> bool:
        """Say whether another round ends in time, if it takes a fifth more than round_s, the longest so far."""
        return self.end_within_s is None or so_far_s + 1.2 * round_s <= self.end_within_s


@Parameter(name="*", group=DISTURBED)
@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Slowness that is added on purpose, under all schedules. Raises UsageError for negative numbers."""

    slow_stage: Annotated[int | None, Parameter(metavar="STAGE")] = None
    """one that computes longer, counted from 0"""
    slow_by: float = 0.2
    """of the time of each of its tasks"""
    delays_s: Annotated[float, Parameter(name="--delays", metavar="SECONDS")] = 0.0
    """each message leaves later by a random time up to that, for which its stage waits"""

    def __post_init__(self) -> None:
        for option, number in {"--slow-by": self.slow_by, "--delays": self.delays_s}.items():
            if not (math.isfinite(number) and number >= 0):
                raise UsageError(f"{option} is a number from 0 up, but {number} was given.")


@dataclass(frozen=True, slots=True)
class CheckedContest(CheckedRun):
    """Contest that has passed every check that needs no process. A subclass says what its sides are."""

    rounds: Rounds = Rounds()

    @classmethod
    def of(cls, run: CheckedRun, rounds: Rounds, sides: int, **own: Any) -> Self:
        """Return the contest of that many sides, of which this run is the first; own: further fields."""
        warmup = sides * rounds.warmup
        config = replace(run.config, warmup=warmup, iterations=warmup + sides * rounds.rounds * rounds.steps)
        return cls(config, run.training, run.grid, run.dataset, pretrained=run.pretrained, rounds=rounds, **own)

    def as_options(self) -> dict[str, Any]:
        """Return every option as it came out (CheckedRun.as_options)."""
        options = {key: value for key, value in CheckedRun.as_options(self).items() if key not in OF_TRAIN_ALONE}
        return options | {
            "overlap": str(self.training.overlap),
            "rounds": self.rounds.rounds,
            "steps_per_round": self.rounds.steps,
            "warmup": self.rounds.warmup,
            "end_within_s": self.rounds.end_within_s,
        }


@dataclass(slots=True)
class Side:
    """One side of a contest of trainings, and the times of its turns."""

    name: str
    trainer: "Trainer"
    """Takes the side's steps; several sides may share one."""
    recording: "Recording"
    rounds_s: list[tuple[float, ...]] = field(default_factory=list)
    last: "Iteration | None" = None
    """Latest step."""
    by_step: "dict[int, Iteration]" = field(default_factory=dict)
    """Its iterations by the number of the optimizer's step, of those with one number the latest."""

    def begin(self) -> bool:
        """Begin a turn: make the trainer's next steps this side's. Return whether its model was built for it, and so
        needs a warm-up.
        """
        return False

    def prepare(self) -> None:
        """Do what comes before each step and isn't part of it."""

    def note(self) -> None:
        """Take note of the counted step that has just ended."""

    @property
    def medians_s(self) -> list[float]:
        """Median seconds of its steps, by round."""
        return [median(times) for times in self.rounds_s]

    @property
    def time_s(self) -> float:
        """Seconds per iteration."""
        from engine.result import metrics

        return metrics.time_per_iteration([time_s for times in self.rounds_s for time_s in times])

    def over(self, base: "Side") -> "Ratio | None":
        """Return its time by that of the base, paired by round; None for the base itself."""
        from engine.result import metrics
        from engine.result.schema.contest import Ratio

        if self is base:
            return None
        return Ratio.of(metrics.paired([list(zip(self.medians_s, base.medians_s, strict=True))]))

    def times(self, base: "Side") -> dict[str, Any]:
        """Return the fields of engine.result.contest.ContestSide, of which over_base takes the base."""
        return {
            "name": self.name,
            "rounds_s": tuple(self.rounds_s),
            "time_per_iteration_s": self.time_s,
            "over_base": self.over(base),
        }


def take_rounds(
    sides: Sequence[Side], rounds: Rounds, setup: ContestSetup, check: Callable[[], None] = lambda: None
) -> None:
    """Take every side's warm-up, then its turns. check: called in between. Collective. Raises Diverged."""
    first = sides[0].trainer
    for side in sides:
        side.begin()
        first.recorder.clear()
        _take(side, rounds.warmup, setup, warmup=True)
        log.info("warm-up  %s", side.name, extra=RENEWED)
    check()
    begun_s: list[float] = []

    def begin(number: int) -> bool:
        begun_s.append(time.monotonic())
        longest_s = max((end - start for start, end in pairwise(begun_s)), default=0.0)
        if not number or first.comm.unanimous(rounds.ends_in_time(begun_s[-1] - setup.began, longest_s)):
            return True
        log.warning("only %d of %d rounds: another would end after --end-within", number, rounds.rounds)
        return False

    order = shuffled(random.Random(first.training.seed))
    for number, side in take_turns(sides, rounds.rounds, order, begin):
        if side.begin():
            first.recorder.clear()
            _take(side, rounds.warmup, setup, warmup=True)
        first.recorder.record_into(side.recording)
        times = _take(side, rounds.steps, setup, warmup=False)
        side.rounds_s.append(times)
        at = f"{number + 1}/{rounds.rounds}"
        log.info("round %s  %s  %.3f s a step", at, side.name, mean(times), extra=RENEWED)


def _take(side: Side, steps: int, setup: ContestSetup, *, warmup: bool) -> tuple[float, ...]:
    """Take the side's next steps; return the seconds of each."""
    from engine.training.iterations import take_iteration  # loads torch

    taken = []
    for _ in range(steps):
        side.prepare()
        side.last = take_iteration(side.trainer, len(setup.iterations), warmup=warmup)
        setup.iterations.append(side.last)
        side.by_step[side.trainer.done - 1] = side.last
        taken.append(side.last.time_s)
        if not warmup:
            side.note()
    return tuple(taken)
