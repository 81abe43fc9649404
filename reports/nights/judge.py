"""Judgement of each figure of a night by the nights before it, since the first of its reference (detector.py).

Not all figures are judged: one that follows from another of the same job by arithmetic would only count a slowdown
twice, and parts of a step are for the culprit (culprit.py). The mean of all steps, which other work on the machine
moves for minutes, takes more to raise an alarm where the faster half of the steps is there to do so.
"""

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import dropwhile
from statistics import median
from typing import Literal

from scipy.special import stdtrit

from reports.nights.detector import FEWEST, WINDOWS, Alarm, Follower, false_alarm_limit
from reports.read.history import History, Night, NightJob
from systems.references import CANARY, FEWEST_JOBS, LEAST, Key, Reference, References, ReferenceSet, worse_by

NOT_JUDGED = frozenset({"compute", "exposed_communication", "link", "step", "half_size"})
"""Parts of a step, and numbers of a fit through judged figures."""
QUOTIENTS = ("speed_up", "step_by_bound")
"""Beginnings of names of quotients: of two judged times, or of a time and its lower bound."""
ENDS = ("_low", "_high")
"""Endings of names of an interval's ends."""
FOLLOW = {"hardware_flops_per_s": "time_per_iteration"}
"""A figure, and the one that it follows from by arithmetic."""
STEADIER = {"time_per_iteration": "faster_half"}
"""A figure that other work on the machine moves, and a steadier one of the same work."""
UNSTEADY_SHARE = 0.1
"""Share of a steady figure's false alarms that a figure with a steadier one beside it may raise."""
GIVEN_UP = 12
"""Nights without its figure after which an alarm is given up."""
CONFIDENCE = 0.95

Word = Literal["worse", "better", "same", "unknown", "failed"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judgement of a figure in one night.

    The word is worse while the figure has an alarm, its own or that of a steadier figure of the same work (reason), and
    better if its level has lately changed for the better.
    """

    key: Key
    figure: str
    """Empty for a test without a result."""
    unit: str
    word: Word
    jobs: int
    value: float = math.nan
    """Median of the night's jobs."""
    usual: float = math.nan
    """Expected value in the machine's state by the canary, without any change that an alarm is about."""
    change: float = math.nan
    """Value by usual, less one."""
    low: float = math.nan
    """Lower end of the interval around the change that contains 95 of 100 nights without any change."""
    high: float = math.nan
    drift: float = 0.0
    """Factor by which the level is worse than the reference, less one, where no alarm says so."""
    far: bool = False
    """Whether the night is worse by twice its interval, where no alarm says so."""
    reason: str = ""
    """Why it failed, is unknown, or has no alarm of its own."""
    alarm: Alarm | None = None


def is_judged(figure: str, unit: str, beside: Set[str]) -> bool:
    """Return whether a figure is judged, by its unit, its name, and the other figures of its job."""
    return (
        worse_by(unit) != 0
        and figure not in NOT_JUDGED
        and not figure.startswith(QUOTIENTS)
        and not figure.endswith(ENDS)
        and FOLLOW.get(figure, figure) not in beside - {figure}
    )


@dataclass(frozen=True, slots=True)
class FigureHistory:
    """One figure of a test through the nights, by their position in order."""

    key: Key
    figure: str
    unit: str
    references: ReferenceSet | None = None
    """References of the figure's test."""
    jobs: dict[int, list[NightJob]] = field(default_factory=dict)
    """Jobs that measured it, by night."""
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    changes: dict[int, float] = field(default_factory=dict)
    """Sum of the sizes of the steps of its level that begin with a night."""

    @property
    def values(self) -> list[list[float]]:
        """Return each night's values, one a job."""
        return [self.measured(jobs) for jobs in self.jobs.values()]

    def measured(self, jobs: Iterable[NightJob]) -> list[float]:
        return [job.figures[self.figure][0] for job in jobs]

    @property
    def share(self) -> float:
        """Share of a steady figure's false alarms that it may raise, by the figures with a reference beside it."""
        beside = self.references.figures if self.references else ()
        return UNSTEADY_SHARE if STEADIER.get(self.figure) in beside else 1.0

    def since(self, nights: Sequence[Night]) -> dict[int, list[NightJob]]:
        """Leave out nights stored before the first of the reference: by order, as a clock may run backwards."""
        if self.references is None:
            return {}
        first = datetime.fromisoformat(self.references.first)
        return dict(dropwhile(lambda of: nights[of[0]].began < first, self.jobs.items()))

    def logarithms(self, jobs: Sequence[NightJob]) -> tuple[list[float], list[float]]:
        """Return natural logarithms of how bad each of these jobs is, and of the canary's seconds in those that ran it;
        the canary itself is compared with nothing.
        """
        canary = [job.figures[CANARY][0] for job in jobs if self.figure != CANARY and CANARY in job.figures]
        bad = [worse_by(self.unit) * math.log(value) for value in self.measured(jobs)]
        return bad, [math.log(seconds) for seconds in canary]

    def unknown(self, values: Sequence[float], reason: str, alarm: Alarm | None = None) -> Verdict:
        """Return the verdict of a night whose values can't be judged."""
        value = median(values) if values else math.nan
        return Verdict(self.key, self.figure, self.unit, "unknown", len(values), value, reason=reason, alarm=alarm)

    def judge(self, nights: Sequence[Night], limit: float) -> None:
        """Add the verdicts and the changes of its level. limit: the false-alarm limit of a steady figure.

        A night without the figure is unknown if its test has run, for GIVEN_UP nights; if it hasn't, an alarm stays as
        long, and the next night says that it is given up.
        """
        reference = self.references.figures.get(self.figure) if self.references else None
        if reference is None:
            jobs = 0
            for at, values in zip(self.jobs, self.values, strict=True):
                jobs += len(values)
                why = f", {jobs} of the {FEWEST_JOBS} jobs that one takes" if jobs < FEWEST_JOBS else " yet"
                self.verdicts[at] = self.unknown(values, f"no reference{why}")
            return
        measured, watch, alarm = self.since(nights), Follower(limit * self.share), None
        for at, night in enumerate(nights):
            if jobs_of_night := measured.get(at):
                level = -sum(each.remaining for each in watch.worse)
                watch.add(*self.logarithms(jobs_of_night))
                self.verdicts[at] = self._verdict(self.measured(jobs_of_night), watch, level, reference)
                alarm = self.verdicts[at].alarm
            elif (missed := watch.miss()) > GIVEN_UP and alarm:
                why = f"its alarm is given up, as it was not measured in {GIVEN_UP} nights"
                self.verdicts[at] = self.unknown((), why)
                watch.worse.clear()
                alarm = None
            elif 0 < missed <= GIVEN_UP and self._has_run(night):
                self.verdicts[at] = self.unknown((), "it was not measured", alarm)
            elif alarm:
                self.verdicts[at] = self.unknown((), "its test was not run", alarm)
        self.changes.update(watch.changes)

    def _has_run(self, night: Night) -> bool:
        """Return whether a night has run the figure's test. The canary is expected in nights of ci/nightly alone."""
        expected = self.figure != CANARY or bool(night.chosen)
        return expected and any(job.key.name == self.key.name for job in night.jobs)

    def _verdict(self, values: Sequence[float], watch: Follower, level: float, reference: Reference) -> Verdict:
        """Compare a night with what is expected of it. level: by how much open alarms have moved that."""
        if (last := watch.last()) is None:
            return self.unknown(values, f"{len(watch.nights) - 1} of the {FEWEST} nights before that it takes")
        noise, now = last
        alarm = watch.worse[-1] if watch.worse else None
        lately = any(watch.changes.get(each, 0.0) < 0 for each in watch.nights[-WINDOWS[-1] :])
        value, sign = median(values), worse_by(self.unit)
        by_canary = sign * math.log(value) - now
        expected = noise.level + noise.drift + level
        effect = now - expected
        half = float(stdtrit(noise.degrees_of_freedom, (1 + CONFIDENCE) / 2)) * noise.scale
        low, high = sorted(math.expm1(sign * end) for end in (effect - half, effect + half))
        drift = math.expm1(expected - sign * math.log(reference.median))
        return Verdict(
            self.key,
            self.figure,
            self.unit,
            "worse" if alarm else "better" if lately else "same",
            len(values),
            value=value,
            usual=math.exp(sign * (expected + by_canary)),
            change=math.expm1(sign * effect),
            low=low,
            high=high,
            alarm=alarm,
            far=not alarm and math.expm1(effect) >= LEAST and effect > 2 * half,
            drift=drift if not alarm and drift >= LEAST and drift > math.expm1(noise.scale) else 0.0,
        )


def collect_figures(nights: Sequence[Night], known: References | None = None) -> list[FigureHistory]:
    """Collect the figures that are judged, by test and name."""
    by_key = known.by_key() if known else {}
    histories: dict[tuple[Key, str], FigureHistory] = {}
    for position, night in enumerate(nights):
        for job in night.jobs:
            for name, (_, unit) in job.figures.items():
                if is_judged(name, unit, job.figures.keys()):
                    new = FigureHistory(job.key, name, unit, by_key.get(job.key))
                    histories.setdefault((job.key, name), new).jobs.setdefault(position, []).append(job)
    return list(histories.values())


def judge_nights(history: History, known: References | None) -> list[FigureHistory]:
    """Judge each figure in all nights that have it, or miss it."""
    figures = collect_figures(history.nights, known)
    limit, by_name = _limit(figures), {(figure.key, figure.figure): figure for figure in figures}
    for figure in figures:
        figure.judge(history.nights, limit)
    for figure in figures:
        steadier = by_name.get((figure.key, STEADIER.get(figure.figure, "")))
        for at, verdict in figure.verdicts.items() if steadier else ():
            other = steadier.verdicts.get(at) if steadier else None
            if verdict.alarm and other and other.alarm:  # of the same work one alarm is left
                reason = verdict.reason or f"its alarm is that of {STEADIER[figure.figure]}"
                figure.verdicts[at] = replace(verdict, alarm=None, reason=reason)
    return figures


def _limit(figures: Iterable[FigureHistory]) -> float:
    """Return the false-alarm limit of a steady figure, by how many figures have a reference."""
    return false_alarm_limit(
        sum(figure.share for figure in figures if figure.references and figure.figure in figure.references.figures)
    )


def suspects(history: History, known: References | None, tonight: Sequence[NightJob]) -> list[Key]:
    """Find the tests with a figure that looks worse in tonight's jobs than before, and is worth another job."""
    figures, suspected = collect_figures(history.nights, known), dict[Key, None]()
    limit = _limit(figures)
    for figure in figures:
        jobs = [job for job in tonight if job.key == figure.key and figure.figure in job.figures]
        if jobs and figure.share >= 1 and figure.key not in suspected:
            watch = Follower(limit)
            for earlier in figure.since(history.nights).values():
                watch.add(*figure.logarithms(earlier))
            if watch.looks_worse(*figure.logarithms(jobs)):
                suspected[figure.key] = None
    return list(suspected)
