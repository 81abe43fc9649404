"""A schedule's bubble is judged by the formula, where stages are equal and each rank has a core of its own. No torch.

The bubble is the time in which a stage waits for other stages, by the time in which it works (metrics.bubble). p equal
stages and m micro-batches give GPipe and 1F1B (p - 1) / m. What is asked of a schedule was fixed before any was judged.
"""

from collections.abc import Iterator, Sequence
from math import inf, nan
from statistics import mean, median
from typing import NamedTuple

from engine.result import gate, metrics
from engine.result.gate import NOTHING_KNOWN, Interval
from engine.result.metrics import Paired
from engine.result.schema.contest import ScheduleSide

OFF = 0.05
"""The bubble of GPipe and of 1F1B may be off the formula by this part of a step, up or down."""
ZERO = 0.5
"""A zero bubble is this part of the formula's at most."""
UNEVEN = 0.02
"""Stages are equal if the one that works longest works at most this much longer than the one that works shortest."""
OF_THE_FORMULA = {"gpipe": 1.0, "1f1b": 1.0, "zero-bubble": ZERO}
"""Schedules that are judged, each by this part of the formula's bubble."""


class Bubble(NamedTuple):
    """Judged bubble of a schedule, over jobs or over the rounds of the only one.

    expected: what the formula gives, and half of it for the zero bubble. off: what the time in the measured bubble has
    above the expected one, as a part of a step; of it the middle and its interval, which may be NOTHING_KNOWN. uneven:
    how much longer the stage that works longest works than the shortest. why: it is undecided whatever was measured;
    "" where the measurement decides.
    """

    expected: float
    measured: Paired
    off: Paired
    uneven: float
    outcome: gate.Outcome
    why: str


class _Round(NamedTuple):
    """Median step of a round. idle_s: the mean of all stages; works_s: of each stage."""

    step_s: float
    idle_s: float
    works_s: tuple[float, ...]

    @property
    def bubble(self) -> float:
        return metrics.bubble(self.idle_s, mean(self.works_s))

    def off(self, expected: float) -> float:
        return metrics.bubble_off(self.idle_s, mean(self.works_s), self.step_s, expected)


def judge(jobs: Sequence[ScheduleSide], micro_batches: float) -> Bubble | None:
    """Judge a schedule by jobs in which nothing was slowed down on purpose; None if nothing is asked of it, or the jobs
    didn't keep what that takes.
    """
    part = OF_THE_FORMULA.get(jobs[0].name) if jobs else None
    timed = [rounds for job in jobs if (rounds := list(_rounds(job)))]
    if part is None or not timed or not micro_batches >= 1:
        return None
    expected = part * metrics.formula_bubble(len(jobs[0].stages), micro_batches)
    # what is left of a step is a ratio above 0, as intervals take it
    left = metrics.paired([[(1 - one.off(expected), 1.0) for one in rounds] for rounds in timed])
    outcome = gate.at_least(left.interval, 1.0) if part < 1 else gate.within(left.interval, 1 - OFF, 1 + OFF)
    uneven = _uneven([one for rounds in timed for one in rounds])
    why = ""
    if any(job.machine is not None and job.machine.shared for job in jobs):
        why = "ranks share cores"
    elif uneven > UNEVEN:
        why = "stages aren't equal"
    return Bubble(
        expected,
        metrics.paired([[(one.bubble, 1.0) for one in rounds] for rounds in timed]),
        Paired(1 - left.ratio, NOTHING_KNOWN if left.interval == NOTHING_KNOWN else _beyond(left.interval)),
        uneven,
        "undecided" if why else outcome,
        why,
    )


def _beyond(left: Interval) -> Interval:
    return Interval(1 - left.high, 1 - left.low)


def _rounds(job: ScheduleSide) -> Iterator[_Round]:
    """Give the rounds of which all stages have times that a clock may show."""
    kept = (job.rounds_s, *(of for stage in job.stages for of in (stage.idle_s, stage.work_s)))
    for times in zip(*kept, strict=False):  # where a result is older there are none
        step_s, *of_stages = (median(steps_s) if steps_s else nan for steps_s in times)
        idle_s, works_s = mean(of_stages[::2]), tuple(of_stages[1::2])
        if all(0 < time_s <= step_s < inf for time_s in (idle_s, *works_s)):
            yield _Round(step_s, idle_s, works_s)


def _uneven(rounds: Sequence[_Round]) -> float:
    """Compare the median work of the stages."""
    works_s = [median(of_stage) for of_stage in zip(*(one.works_s for one in rounds), strict=True)]
    return metrics.stages_differ(max(works_s), min(works_s))
