"""Judgement of each figure of a night by the nights before it, since the first of its reference (detector.py).

A figure without a reference, or of fewer than FEWEST nights, is unknown, never the same. As a change takes three
nights, the two after those can only be far off. What isn't measured any more doesn't pass, for GIVEN_UP nights.

Not all are judged: one that follows from another one of the same job by arithmetic would only count a slowdown twice,
and parts of a step say, where the step got slower, what did (culprit.py). The mean of all steps, which other work on
the machine moves for minutes, takes more to raise an alarm where the faster half of the steps is there to do so.
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
from reports.nights.history import History, Night, NightJob
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
    """Expected value, in the state that the canary tells, without any change that an alarm is about."""
    change: float = math.nan
    """Value by usual, less one."""
    low: float = math.nan
    """Lower end of the interval around the change that holds at least 95 of 100 nights without any change."""
    high: float = math.nan
    """Upper end of that interval."""
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
    """One figure of a test through the nights, which are given by position in their order."""

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
        """Return how bad it is in each of these jobs, and the canary's seconds in those that ran it, as natural
        logarithms. The canary itself is compared with nothing.
        """
        canary = [job.figures[CANARY][0] for job in jobs if self.figure != CANARY and CANARY in job.figures]
        bad = [worse_by(self.unit) * math.log(value) for value in self.measured(jobs)]
        return bad, [math.log(seconds) for seconds in canary]

    def unknown(self, values: Sequence[float], reason: str, alarm: Alarm | None = None) -> Verdict:
        """Return the verdict of a night whose values can't be judged."""
        value = median(values) if values else math.nan
        return Verdict(self.key, self.figure, self.unit, "unknown", len(values), value, reason=reason, alarm=alarm)


def collect_figures(nights: Sequence[Night], known: References | None = None) -> list[FigureHistory]:
    """Collect the figures that are judged, by test and name."""
    by_key = known.by_key() if known else {}
    found: dict[tuple[Key, str], FigureHistory] = {}
    for position, night in enumerate(nights):
        for job in night.jobs:
            for name, (_, unit) in job.figures.items():
                if is_judged(name, unit, job.figures.keys()):
                    new = FigureHistory(job.key, name, unit, by_key.get(job.key))
                    found.setdefault((job.key, name), new).jobs.setdefault(position, []).append(job)
    return list(found.values())


def judge_nights(history: History, known: References | None) -> list[FigureHistory]:
    """Judge each figure in all nights that have it, or miss it."""
    every = collect_figures(history.nights, known)
    limit, by_name = _limit(every), {(one.key, one.figure): one for one in every}
    for one in every:
        _judge(one, history.nights, limit)
    for one in every:
        steadier = by_name.get((one.key, STEADIER.get(one.figure, "")))
        alarmed = {at for at, verdict in steadier.verdicts.items() if verdict.alarm} if steadier else set()
        for at, verdict in one.verdicts.items():
            if verdict.alarm and at in alarmed:  # of the same work one alarm is left
                reason = verdict.reason or f"its alarm is that of {STEADIER[one.figure]}"
                one.verdicts[at] = replace(verdict, alarm=None, reason=reason)
    return every


def _limit(every: Iterable[FigureHistory]) -> float:
    """Return the false-alarm limit of a steady figure, by how many figures have a reference."""
    return false_alarm_limit(sum(one.share for one in every if one.references and one.figure in one.references.figures))


def _judge(one: FigureHistory, nights: Sequence[Night], limit: float) -> None:
    """Add a figure's verdicts and the changes of its level.

    A night without the figure is unknown if its test has run, for GIVEN_UP nights; if it hasn't, an alarm stays as
    long, and the next night says that it is given up.
    """
    usual = one.references.figures.get(one.figure) if one.references else None
    if usual is None:
        jobs = 0
        for position, values in zip(one.jobs, one.values, strict=True):
            jobs += len(values)
            of = f", {jobs} of the {FEWEST_JOBS} jobs that one takes" if jobs < FEWEST_JOBS else " yet"
            one.verdicts[position] = one.unknown(values, f"no reference{of}")
        return
    measured, watch, alarm = one.since(nights), Follower(limit * one.share), None
    for at, night in enumerate(nights):
        if of_night := measured.get(at):
            level = -sum(each.remaining for each in watch.worse)
            watch.add(*one.logarithms(of_night))
            one.verdicts[at] = _verdict(one, one.measured(of_night), watch, level, usual)
            alarm = one.verdicts[at].alarm
        elif (missed := watch.miss()) > GIVEN_UP and alarm:
            one.verdicts[at] = one.unknown((), f"its alarm is given up, as it was not measured in {GIVEN_UP} nights")
            watch.worse.clear()
            alarm = None
        elif 0 < missed <= GIVEN_UP and _has_run(one, night):
            one.verdicts[at] = one.unknown((), "it was not measured", alarm)
        elif alarm:
            one.verdicts[at] = one.unknown((), "its test was not run", alarm)
    one.changes.update(watch.changes)


def _has_run(one: FigureHistory, night: Night) -> bool:
    """Return whether a night has run the figure's test. The canary is expected in nights of ci/nightly alone."""
    return (one.figure != CANARY or bool(night.chosen)) and any(job.key.name == one.key.name for job in night.jobs)


def _verdict(one: FigureHistory, values: Sequence[float], watch: Follower, level: float, usual: Reference) -> Verdict:
    """Compare a night with what is expected of it. level: by how much open alarms have moved that."""
    if (last := watch.last()) is None:
        return one.unknown(values, f"{len(watch.nights) - 1} of the {FEWEST} nights before that tell what is usual")
    expected, now = last
    alarm = watch.worse[-1] if watch.worse else None
    lately = any(watch.changes.get(each, 0.0) < 0 for each in watch.nights[-WINDOWS[-1] :])
    word: Word = "worse" if alarm else "better" if lately else "same"
    value, sign = median(values), worse_by(one.unit)
    by_canary = sign * math.log(value) - now
    without = expected.level + expected.drift + level
    effect = now - without
    half = float(stdtrit(expected.degrees_of_freedom, (1 + CONFIDENCE) / 2)) * expected.scale
    low, high = sorted(math.expm1(sign * end) for end in (effect - half, effect + half))
    drift = math.expm1(without - sign * math.log(usual.median))
    return Verdict(
        one.key,
        one.figure,
        one.unit,
        word,
        len(values),
        value=value,
        usual=math.exp(sign * (without + by_canary)),
        change=math.expm1(sign * effect),
        low=low,
        high=high,
        alarm=alarm,
        far=not alarm and math.expm1(effect) >= LEAST and effect > 2 * half,
        drift=drift if not alarm and drift >= LEAST and drift > math.expm1(expected.scale) else 0.0,
    )


def suspects(history: History, known: References | None, tonight: Sequence[NightJob]) -> list[Key]:
    """Find the tests with a figure that looks worse in tonight's jobs than before, and is worth another job."""
    every, found = collect_figures(history.nights, known), list[Key]()
    limit = _limit(every)
    for one in every:
        jobs = [job for job in tonight if job.key == one.key and one.figure in job.figures]
        if jobs and one.share >= 1 and one.key not in found:
            watch = Follower(limit)
            for earlier in one.since(history.nights).values():
                watch.add(*one.logarithms(earlier))
            if watch.looks_worse(*one.logarithms(jobs)):
                found.append(one.key)
    return found
