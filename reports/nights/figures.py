"""Some figures of a test are judged: they have jobs in some nights, and get verdicts (judge.py).

One that follows from another one of the same job by arithmetic would only count a slowdown twice. Parts of a step
are not judged but say, where the step got slower, what did (culprit.py). The mean of all steps, which other work on the
machine moves for minutes, takes more to raise an alarm where the faster half of the steps is there to do so.
"""

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from itertools import dropwhile
from statistics import median
from typing import Literal

from reports.nights.detector import Alarm
from reports.nights.history import Night, NightJob
from systems.references import CANARY, Key, References, ReferenceSet, worse_by

NOT_JUDGED = frozenset({"compute", "exposed_communication", "link", "step", "half_size"})
"""These are parts of a step, or numbers of a fit through judged figures."""
QUOTIENTS = ("speed_up", "step_by_bound")
"""Names begin with these if the figure is a quotient of two judged times, or of a time and its lower bound."""
ENDS = ("_low", "_high")
"""Names end with these if the figure is the end of an interval."""
FOLLOW = {"hardware_flops_per_s": "time_per_iteration"}
"""Each figure follows from the other one by arithmetic."""
MOVED_BY_OTHERS = {"time_per_iteration": "faster_half"}
"""Each figure has a steadier one of the same work."""
RARELY = 0.1
"""A figure that other work on the machine moves may raise this share of a steady figure's false alarms."""

Word = Literal["worse", "better", "same", "unknown", "failed"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure is worse while it has an alarm, its own or that of a steadier figure of the same work (reason), and
    better if its level has lately changed for the better.

    A test without a result has a verdict without a figure (""). value is the median of the night's jobs, usual what was
    expected of it, in the mood that the canary tells, without any change that an alarm is about, and change the first
    by the second, less one, with the interval in which at least 95 of 100 nights without any change lie around it.
    drift is by how much the level is worse than the reference, and far says that the night is worse by twice its
    interval, where no alarm says either. reason says why it failed, is unknown, or has no alarm of its own.
    """

    key: Key
    figure: str
    unit: str
    word: Word
    jobs: int
    value: float = math.nan
    usual: float = math.nan
    change: float = math.nan
    low: float = math.nan
    high: float = math.nan
    drift: float = 0.0
    far: bool = False
    reason: str = ""
    alarm: Alarm | None = None


def is_judged(figure: str, unit: str, beside: Set[str]) -> bool:
    """A figure is judged by its unit, its name, and the other figures of the job beside it."""
    return (
        worse_by(unit) != 0
        and figure not in NOT_JUDGED
        and not figure.startswith(QUOTIENTS)
        and not figure.endswith(ENDS)
        and FOLLOW.get(figure, figure) not in beside - {figure}
    )


@dataclass(frozen=True, slots=True)
class FigureHistory:
    """A figure was measured by jobs of some nights, which are given by position in their order.

    references: those of its test. verdicts: by position of the night. changes: its level has changed with these nights,
    by the sum of the sizes of the steps that begin with the same one.
    """

    key: Key
    figure: str
    unit: str
    references: ReferenceSet | None = None
    jobs: dict[int, list[NightJob]] = field(default_factory=dict)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    changes: dict[int, float] = field(default_factory=dict)

    @property
    def values(self) -> list[list[float]]:
        """Give each night's values, one a job."""
        return [self.measured(jobs) for jobs in self.jobs.values()]

    def measured(self, jobs: Iterable[NightJob]) -> list[float]:
        return [job.figures[self.figure][0] for job in jobs]

    @property
    def share(self) -> float:
        """Say what share of a steady figure's false alarms it may raise, by the figures with a reference beside it."""
        beside = self.references.figures if self.references else ()
        return RARELY if MOVED_BY_OTHERS.get(self.figure) in beside else 1.0

    def since(self, nights: Sequence[Night]) -> dict[int, list[NightJob]]:
        """Leave out nights before the first of the reference, by the order of storing: a clock may run backwards."""
        if self.references is None:
            return {}
        first = datetime.fromisoformat(self.references.first)
        return dict(dropwhile(lambda of: nights[of[0]].began < first, self.jobs.items()))

    def followed(self, jobs: Sequence[NightJob]) -> tuple[list[float], list[float]]:
        """Give how bad it is in each of these jobs, and seconds of the frozen program in those that ran it, both as
        natural logarithms. That program itself is set against nothing.
        """
        canary = [job.figures[CANARY][0] for job in jobs if self.figure != CANARY and CANARY in job.figures]
        bad = [worse_by(self.unit) * math.log(value) for value in self.measured(jobs)]
        return bad, [math.log(seconds) for seconds in canary]

    def unknown(self, values: Sequence[float], reason: str, alarm: Alarm | None = None) -> Verdict:
        """Give the verdict where it can't be judged by the values of that night."""
        value = median(values) if values else math.nan
        return Verdict(self.key, self.figure, self.unit, "unknown", len(values), value, reason=reason, alarm=alarm)


def figures(nights: Sequence[Night], known: References | None = None) -> list[FigureHistory]:
    by_key = known.by_key() if known else {}
    found: dict[tuple[Key, str], FigureHistory] = {}
    for position, night in enumerate(nights):
        for job in night.jobs:
            for name, (_, unit) in job.figures.items():
                if is_judged(name, unit, job.figures.keys()):
                    new = FigureHistory(job.key, name, unit, by_key.get(job.key))
                    found.setdefault((job.key, name), new).jobs.setdefault(position, []).append(job)
    return list(found.values())
