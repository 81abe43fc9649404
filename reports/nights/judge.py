"""Each figure of a night is judged by the nights before it, since the first of its reference (detector.py).

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

from reports.nights.detector import FEWEST, WINDOWS, Alarm, Follower, limit_of
from reports.nights.history import History, Night, NightJob
from systems.references import CANARY, FEWEST_JOBS, LEAST, Key, Reference, References, ReferenceSet, worse_by

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
GIVEN_UP = 12
"""An alarm is given up when its figure wasn't measured in so many nights."""
CONFIDENCE = 0.95

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


def judged(history: History, known: References | None) -> list[FigureHistory]:
    """Judge each figure in all nights that have it, or miss it."""
    every = figures(history.nights, known)
    limit, by_name = _limit(every), {(one.key, one.figure): one for one in every}
    for one in every:
        _judge(one, history.nights, limit)
    for one in every:
        steadier = by_name.get((one.key, MOVED_BY_OTHERS.get(one.figure, "")))
        alarmed = {at for at, verdict in steadier.verdicts.items() if verdict.alarm} if steadier else set()
        for at, verdict in one.verdicts.items():
            if verdict.alarm and at in alarmed:  # of the same work one alarm is left
                reason = verdict.reason or f"its alarm is that of {MOVED_BY_OTHERS[one.figure]}"
                one.verdicts[at] = replace(verdict, alarm=None, reason=reason)
    return every


def _limit(every: Iterable[FigureHistory]) -> float:
    """Limit the chance of a steady figure's change, by how many figures have a reference."""
    return limit_of(sum(one.share for one in every if one.references and one.figure in one.references.figures))


def _judge(one: FigureHistory, nights: Sequence[Night], limit: float) -> None:
    """Give a figure its verdicts, and the changes of its level.

    Of GIVEN_UP nights without the figure none passes where the test has run; where it hasn't, an alarm stays, and the
    next night says that it is given up.
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
            level = -sum(each.left for each in watch.worse)
            watch.add(*one.followed(of_night))
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
    """Say whether a night has run the figure's test. The canary is looked for in nights of ci/nightly alone."""
    return (one.figure != CANARY or bool(night.chosen)) and any(job.key.name == one.key.name for job in night.jobs)


def _verdict(one: FigureHistory, values: Sequence[float], watch: Follower, level: float, usual: Reference) -> Verdict:
    """Set a night against what is expected of it with this mood. level: what open alarms have moved that by."""
    if (last := watch.last()) is None:
        return one.unknown(values, f"{len(watch.nights) - 1} of the {FEWEST} nights before that tell what is usual")
    expected, now = last
    alarm = watch.worse[-1] if watch.worse else None
    lately = any(watch.changes.get(each, 0.0) < 0 for each in watch.nights[-WINDOWS[-1] :])
    word: Word = "worse" if alarm else "better" if lately else "same"
    value, sign = median(values), worse_by(one.unit)
    mood = sign * math.log(value) - now
    without = expected.level + expected.drift + level
    effect = now - without
    half = float(stdtrit(expected.freedom, (1 + CONFIDENCE) / 2)) * expected.scale
    low, high = sorted(math.expm1(sign * end) for end in (effect - half, effect + half))
    drift = math.expm1(without - sign * math.log(usual.median))
    return Verdict(
        one.key, one.figure, one.unit, word, len(values), value=value, usual=math.exp(sign * (without + mood)),
        change=math.expm1(sign * effect), low=low, high=high, alarm=alarm,
        far=not alarm and math.expm1(effect) >= LEAST and effect > 2 * half,
        drift=drift if not alarm and drift >= LEAST and drift > math.expm1(expected.scale) else 0.0,
    )  # fmt: skip


def suspects(history: History, known: References | None, tonight: Sequence[NightJob]) -> list[Key]:
    """Find the tests with a figure that looks worse in tonight's jobs than before: another job is worth it."""
    every, found = figures(history.nights, known), list[Key]()
    limit = _limit(every)
    for one in every:
        jobs = [job for job in tonight if job.key == one.key and one.figure in job.figures]
        if jobs and one.share >= 1 and one.key not in found:
            watch = Follower(limit)
            for earlier in one.since(history.nights).values():
                watch.add(*one.followed(earlier))
            if watch.looks_worse(*one.followed(jobs)):
                found.append(one.key)
    return found
