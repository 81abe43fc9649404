"""Judgement of a schedule's bubble by the formula, where stages are equal and each rank has a core of its own.

The bubble is the time in which a stage waits for other stages, by the time in which it works (metrics.bubble). p equal
stages and m micro-batches give GPipe and 1F1B (p - 1) / m. Limits were fixed before any schedule was judged. No torch.
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
"""Part of a step by which the bubble of GPipe and of 1F1B may be off the formula, up or down."""
ZERO = 0.5
"""Largest zero bubble, as a part of the formula's."""
UNEVEN = 0.02
"""Part by which the stage that works longest may work longer than the shortest if stages are equal."""
OF_THE_FORMULA = {"gpipe": 1.0, "1f1b": 1.0, "zero-bubble": ZERO}
"""Schedules that are judged, each by this part of the formula's bubble."""


class Bubble(NamedTuple):
    """Judged bubble of a schedule, over jobs or over the rounds of the only one."""

    expected: float
    """Bubble of the formula, and half of it for the zero bubble."""
    measured: Paired
    off: Paired
    """Time beyond the expected bubble, as a part of a step, with its interval, which may be NOTHING_KNOWN."""
    uneven: float
    """Part by which the stage that works longest works longer than the shortest."""
    outcome: gate.Outcome
    why: str
    """Why it is undecided whatever was measured; "" where the measurement decides."""


class Round(NamedTuple):
    """Median step of a round."""

    step_s: float
    idle_s: float
    """Mean of all stages."""
    works_s: tuple[float, ...]
    """Work of each stage."""

    @property
    def in_stages_s(self) -> float:
        return metrics.time_in_stages(self.idle_s, mean(self.works_s))

    @property
    def bubble(self) -> float:
        return metrics.bubble(self.idle_s, mean(self.works_s))

    def off(self, expected: float) -> float:
        return metrics.bubble_off(self.idle_s, mean(self.works_s), self.step_s, expected)


def judge(jobs: Sequence[ScheduleSide], micro_batches: float) -> Bubble | None:
    """Judge a schedule by jobs in which nothing was slowed down on purpose; None if the schedule isn't judged, or the
    jobs didn't keep the times.
    """
    part = OF_THE_FORMULA.get(jobs[0].name) if jobs else None
    timed = [rounds for job in jobs if (rounds := list(rounds_of(job)))]
    if part is None or not timed or not micro_batches >= 1:
        return None
    expected = part * metrics.formula_bubble(len(jobs[0].stages), micro_batches)
    # what is left of a step is a ratio above 0, as intervals take it
    left = metrics.paired([[(1 - played.off(expected), 1.0) for played in rounds] for rounds in timed])
    outcome = gate.at_least(left.interval, 1.0) if part < 1 else gate.within(left.interval, 1 - OFF, 1 + OFF)
    low, high = left.interval
    works_s = zip(*(played.works_s for rounds in timed for played in rounds), strict=True)
    usual_s = [median(of_stage) for of_stage in works_s]
    uneven = metrics.stages_differ(max(usual_s), min(usual_s))
    why = ""
    if any(job.machine is not None and job.machine.shared for job in jobs):
        why = "ranks share cores"
    elif uneven > UNEVEN:
        why = "stages aren't equal"
    return Bubble(
        expected,
        metrics.paired([[(played.bubble, 1.0) for played in rounds] for rounds in timed]),
        Paired(1 - left.ratio, NOTHING_KNOWN if left.interval == NOTHING_KNOWN else Interval(1 - high, 1 - low)),
        uneven,
        "undecided" if why else outcome,
        why,
    )


def rounds_of(job: ScheduleSide) -> Iterator[Round]:
    """Yield the rounds of which all stages have times that a clock may show; an older result has none."""
    kept = (job.rounds_s, *(times for stage in job.stages for times in (stage.idle_s, stage.work_s)))
    for times in zip(*kept, strict=False):
        step_s, *of_stages = (median(steps_s) if steps_s else nan for steps_s in times)
        idle_s, works_s = mean(of_stages[::2]), tuple(of_stages[1::2])
        if all(0 < time_s <= step_s < inf for time_s in (idle_s, *works_s)):
            yield Round(step_s, idle_s, works_s)
