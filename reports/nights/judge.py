"""Judgement of each figure of a night by the nights before it (detector.py).

Not all figures are judged: one that follows from another of the same job by arithmetic would only count a slowdown
twice, and parts of a step are for the culprit (culprit.py). The mean of all steps, which other work on the machine
moves for minutes, takes more to be called slower where the faster half of the steps is there to tell.
"""

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import Literal

import numpy as np
from scipy.special import stdtrit

from engine.result.gate import CONFIDENCE
from reports.nights.canary import canary_share
from reports.nights.detector import Detector, false_alarm_limit
from reports.nights.levels import BASELINE, FEWEST, GIVEN_UP, Gain, Slowdown
from reports.nights.noise import Floats
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
"""Share of a steady figure's false slowdowns that a figure with a steadier one beside it may show."""
OFF_BY = 2
"""Nights by which the beginning of a change may be off."""
LATELY = 30
"""Nights in which a gain is told beside its figure."""

Word = Literal["worse", "better", "same", "unknown", "failed"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Judgement of a figure in one night.

    The word is worse while a slowdown is open, and better if the level has lately changed for the better.
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
    """Expected value in the machine's state by the canary, without open slowdowns."""
    change: float = math.nan
    """Value by usual, less one."""
    low: float = math.nan
    """Lower end of the interval around the change that contains 95 of 100 nights without any change."""
    high: float = math.nan
    drift: float = 0.0
    """Factor by which the level is worse than the reference, less one, where no slowdown says so."""
    far: bool = False
    """Whether the night is worse by twice its interval, where no slowdown says so."""
    reason: str = ""
    """Why it failed, is unknown, or is better."""
    slowdown: Slowdown | None = None
    """The newest one that is open."""


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

    @property
    def values(self) -> list[list[float]]:
        """Return each night's values, one a job."""
        return [self.measured(jobs) for jobs in self.jobs.values()]

    def measured(self, jobs: Iterable[NightJob]) -> list[float]:
        return [job.figures[self.figure][0] for job in jobs]

    @property
    def share(self) -> float:
        """Share of a steady figure's false slowdowns that it may show, by the figures with a reference beside it."""
        beside = self.references.figures if self.references else ()
        return UNSTEADY_SHARE if STEADIER.get(self.figure) in beside else 1.0

    @property
    def reference(self) -> Reference | None:
        return self.references.figures.get(self.figure) if self.references else None

    def logarithms(self, jobs: Sequence[NightJob]) -> tuple[list[float], list[float]]:
        """Return natural logarithms of how bad each of these jobs is, and of the canary's seconds in those that ran it;
        the canary itself is compared with nothing.
        """
        canary = [job.figures[CANARY][0] for job in jobs if self.figure != CANARY and CANARY in job.figures]
        bad = [worse_by(self.unit) * math.log(value) for value in self.measured(jobs)]
        return bad, [math.log(seconds) for seconds in canary]

    def follow(self, until: int) -> tuple[list[int], Floats]:
        """Return the nights up to one, and how bad each was less what the canary explains, as logarithms."""
        nights = [at for at in self.jobs if at <= until]
        bad, canary = zip(*(self.logarithms(self.jobs[at]) for at in nights), strict=True)
        values = np.array([[median(jobs) for jobs in bad]])
        seconds = np.array([[median(each) if each else math.nan for each in canary]])
        return nights, (values - canary_share(values, seconds))[0]

    def level(self, nights: Iterable[int]) -> float:
        """Return the median of how bad these nights were, as a logarithm."""
        jobs = (self.jobs[at] for at in nights if at in self.jobs)
        return median(worse_by(self.unit) * math.log(median(self.measured(each))) for each in jobs)

    def unknown(self, values: Sequence[float], reason: str, slowdown: Slowdown | None = None) -> Verdict:
        """Return the verdict of a night whose values can't be judged."""
        value = median(values) if values else math.nan
        return Verdict(
            self.key, self.figure, self.unit, "unknown", len(values), value, reason=reason, slowdown=slowdown
        )

    def without_reference(self) -> dict[int, Verdict]:
        """Return the verdicts of nights without a reference."""
        jobs, found = 0, dict[int, Verdict]()
        for at, values in zip(self.jobs, self.values, strict=True):
            jobs += len(values)
            why = f", {jobs} of the {FEWEST_JOBS} jobs that one takes" if jobs < FEWEST_JOBS else " yet"
            found[at] = self.unknown(values, f"no reference{why}")
        return found

    def has_run(self, night: Night) -> bool:
        """Return whether a night has run the figure's test. The canary is expected in nights of ci/nightly alone."""
        expected = self.figure != CANARY or bool(night.chosen)
        return expected and any(job.key.name == self.key.name for job in night.jobs)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Figures of a system through its nights, and the detector that has followed those with a reference."""

    nights: Sequence[Night]
    figures: Sequence[FigureHistory]
    watched: Sequence[FigureHistory]
    """Figures by their number in the detector."""
    firsts: Sequence[int]
    """First night of each one's reference."""
    detector: Detector

    def slowdown(self, number: int) -> Slowdown | None:
        """Return the newest open slowdown of a figure."""
        return next(reversed(self.detector.rows[number].open), None)

    def gains(self, figure: FigureHistory) -> list[Gain]:
        """Return a figure's gains that no reference has: where its nights themselves are better than those before, and
        not back from worse ones.
        """
        return [
            gain
            for gain in self.detector.gains
            if self.watched[gain.figure] is figure
            and gain.since - OFF_BY > self.firsts[gain.figure]
            and figure.level(range(gain.since, gain.found + 1))
            <= figure.level([at for at in figure.jobs if at < gain.since][-BASELINE:]) - math.log1p(LEAST)
        ]

    def judge(self, *, verdicts: bool = True) -> None:
        """Judge all nights. A night without a figure is unknown if its test has run, for GIVEN_UP nights. A slowdown is
        given up after them, and once references are made of nights that it is in.
        """
        last = dict[int, int]()
        for at, night in enumerate(self.nights):
            jobs = {number: figure.jobs[at] for number, figure in enumerate(self.watched) if at in figure.jobs}
            self.detector.add(at, {number: self.watched[number].logarithms(jobs[number]) for number in jobs})
            last.update(dict.fromkeys(jobs, at))
            for number, measured in last.items():
                figure, slowdown = self.watched[number], self.slowdown(number)
                renewed = slowdown and slowdown.since - OFF_BY <= self.firsts[number] <= at
                if renewed or at - measured > GIVEN_UP:
                    self.detector.give_up(number, at)
                if not verdicts:
                    continue
                if measured == at:
                    figure.verdicts[at] = self._verdict(number, at)
                elif at - measured <= GIVEN_UP and figure.has_run(night):
                    figure.verdicts[at] = figure.unknown((), "it was not measured", slowdown)

    def _verdict(self, number: int, at: int) -> Verdict:
        """Compare a night with what was expected of it, without what is open."""
        figure, expected = self.watched[number], self.detector.expected(number)
        values, sign, reference = figure.measured(figure.jobs[at]), worse_by(figure.unit), figure.reference
        if expected is None or reference is None:
            before = sum(earlier < at for earlier in figure.jobs)
            return figure.unknown(values, f"{before} of the {FEWEST} nights before that it takes")
        first, slowdown = self.firsts[number], self.slowdown(number)
        gains = [] if slowdown else [gain.since for gain in self.gains(figure) if gain.since > at - LATELY]
        value, level = median(values), expected.level - sum(one.size for one in self.detector.rows[number].open)
        effect = expected.now - level
        half = float(stdtrit(expected.degrees_of_freedom, (1 + CONFIDENCE) / 2)) * expected.scale
        low, high = sorted(math.expm1(sign * end) for end in (effect - half, effect + half))
        drift = math.expm1(level - sign * math.log(reference.median)) if at >= first else 0.0
        return Verdict(
            figure.key,
            figure.figure,
            figure.unit,
            "worse" if slowdown else "better" if gains else "same",
            len(values),
            value=value,
            usual=math.exp(math.log(value) - sign * effect),
            change=math.expm1(sign * effect),
            low=low,
            high=high,
            slowdown=slowdown,
            far=not slowdown and math.expm1(effect) >= LEAST and effect > 2 * half,
            drift=drift if not slowdown and drift >= LEAST and drift > math.expm1(expected.scale) else 0.0,
            reason=f"better since the night {self.nights[gains[-1]].name}" if gains else "",
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


def judge_nights(history: History, known: References | None, *, verdicts: bool = True) -> Judgement:
    """Judge each figure in all nights that have it, or miss it; without verdicts it is only followed."""
    figures = collect_figures(history.nights, known)
    watched = [figure for figure in figures if figure.reference]
    limit = false_alarm_limit(sum(figure.share for figure in watched))
    tests = {key: number for number, key in enumerate(dict.fromkeys(figure.key for figure in watched))}
    detector = Detector([limit * figure.share for figure in watched], [tests[figure.key] for figure in watched])
    firsts = [_first(history.nights, figure.references) for figure in watched]
    judged = Judgement(history.nights, figures, watched, firsts, detector)
    for figure in figures:
        if not figure.reference:
            figure.verdicts.update(figure.without_reference())
    judged.judge(verdicts=verdicts)
    return judged


def _first(nights: Sequence[Night], made: ReferenceSet | None) -> int:
    """Return the first night that references are made of: by order, as a clock may run backwards."""
    began = datetime.fromisoformat(made.first) if made else datetime.min.replace(tzinfo=UTC)
    return next((at for at, night in enumerate(nights) if night.began >= began), len(nights))


def suspects(history: History, known: References | None, tonight: Sequence[NightJob]) -> list[Key]:
    """Find the tests with a figure that looks worse in tonight's jobs than before, and is worth another job."""
    judged, suspected = judge_nights(history, known, verdicts=False), dict[Key, None]()
    for number, figure in enumerate(judged.watched):
        jobs = [job for job in tonight if job.key == figure.key and figure.figure in job.figures]
        if jobs and figure.share >= 1 and judged.detector.looks_worse(number, *figure.logarithms(jobs)):
            suspected[figure.key] = None
    return list(suspected)
