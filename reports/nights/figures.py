"""Some figures of a test are judged.

One that follows from another one of the same job by arithmetic would only count a slowdown twice. Parts of a step
are not judged but say, where the step got slower, what did (culprit.py). The mean of all steps, which other work on the
machine moves for minutes, takes more to raise an alarm where the faster half of the steps is there to do so.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from reports.nights.history import Night, NightJob
from systems.references import CANARY, Key, worse_by

PARTS = frozenset({"compute", "exposed_communication"})
QUOTIENTS = ("speed_up", "step_by_bound")
"""Names begin with these if the figure is a quotient of two judged times, or of a time and its lower bound."""
FOLLOW = {"hardware_flops_per_s": "time_per_iteration"}
"""Each figure follows from the other one by arithmetic."""
MOVED_BY_OTHERS = {"time_per_iteration": "faster_half"}
"""Each figure has a steadier one of the same work."""
RARELY = 0.1
"""A figure that other work on the machine moves may raise this share of a steady figure's false alarms."""
FITTED = frozenset({"link", "step", "half_size"})
"""These are numbers of a fit through judged figures."""
ENDS = ("_low", "_high")
"""Names end with these if the figure is the end of an interval."""


def is_judged(figure: str, unit: str, beside: frozenset[str]) -> bool:
    """A figure is judged by its unit, its name, and the other figures of the job beside it."""
    return (
        worse_by(unit) != 0
        and figure not in PARTS | FITTED
        and not figure.startswith(QUOTIENTS)
        and not figure.endswith(ENDS)
        and FOLLOW.get(figure, figure) not in beside - {figure}
    )


def share(figure: str, beside: Container[str]) -> float:
    """A figure may raise this share of a steady one's false alarms, by the figures with a reference beside it."""
    return RARELY if MOVED_BY_OTHERS.get(figure) in beside else 1.0


@dataclass(frozen=True, slots=True)
class FigureHistory:
    """A figure has values in some nights, which are given by position in their order: one of each of its jobs. canary:
    seconds of the frozen program in these jobs; none of jobs that ran without it, and of the canary itself.
    """

    key: Key
    figure: str
    unit: str
    nights: list[int]
    values: list[list[float]]
    canary: list[list[float]]

    def add(self, position: int, job: NightJob) -> None:
        """Add a job of the night at that position, the last one so far, if it has the figure."""
        if self.figure not in job.figures:
            return
        if not self.nights or self.nights[-1] != position:
            self.nights.append(position)
            self.values.append([])
            self.canary.append([])
        self.values[-1].append(job.figures[self.figure][0])
        if CANARY in job.figures and self.figure != CANARY:
            self.canary[-1].append(job.figures[CANARY][0])


def figures(nights: Sequence[Night]) -> list[FigureHistory]:
    found: dict[tuple[Key, str], FigureHistory] = {}
    for position, night in enumerate(nights):
        for job in night.jobs:
            names = frozenset(job.figures)
            for name, (_, unit) in job.figures.items():
                if is_judged(name, unit, names):
                    one = found.setdefault((job.key, name), FigureHistory(job.key, name, unit, [], [], []))
                    one.add(position, job)
    return list(found.values())
