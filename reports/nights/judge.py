"""Verdicts: each figure of a night against its reference, and whether it got worse against the nights before.

A verdict compares a night's median with the reference: slower (or faster) is what lies beyond the interval, by at least
LEAST, and stays so among all figures of the night (Benjamini and Hochberg 1995, at FALSE_DISCOVERIES). An alarm takes
more: evidence that chance gives less than FALSE_ALARMS_A_YEAR times a year in all figures of a system (evidence.py).
A figure without a reference is unknown, never the same.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median
from typing import Literal

import numpy as np

from reports.nights import evidence
from reports.nights.evidence import BASELINE, FEWEST, LOOK_BACK, Usual
from reports.nights.figures import is_judged, raises_alarms
from reports.nights.history import History, Job, Night
from systems import references
from systems.references import Key, References, worse_by

Word = Literal["faster", "same", "slower", "unknown", "failed"]
FALSE_DISCOVERIES = 0.05
"""Of the figures of a night that are called slower or faster, at most so many by chance, on average."""
STILL_WORSE = evidence.LEAST_EFFECT / 2
"""An alarm ends with two nights in a row that are worse by less."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """That a figure got worse. night: the first that is worse; new: raised tonight; effect: how many times as bad as
    expected, less one; chance: of as much without a change, when it was raised.
    """

    night: str
    new: bool
    effect: float
    chance: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """On a figure of a test in a night; of a failed test on all of them, the figure being "".

    value: the median of the night's jobs. usual: that of the reference. change: value by usual, less one, with its
    interval; least: the smallest change that so many jobs are likely to show. p: of the change, two-sided. reason: why
    it failed or is unknown.
    """

    night: str
    began: datetime
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
    least: float = math.nan
    p: float = 1.0
    reason: str = ""
    alarm: Alarm | None = None

    @property
    def worse(self) -> bool:
        """Whether the change is for the worse."""
        return self.change * worse_by(self.unit) > 0


@dataclass(frozen=True, slots=True)
class Of:
    """A figure through the nights: of each that has it, the values of its jobs, in the order of the nights. alarms:
    whether it raises any.
    """

    key: Key
    figure: str
    unit: str
    alarms: bool
    nights: list[int]
    values: list[list[float]]


def figures(nights: Sequence[Night]) -> list[Of]:
    """Every judged figure of every test, by the positions of the nights."""
    found: dict[tuple[Key, str], Of] = {}
    for position, night in enumerate(nights):
        for job in night.jobs:
            names = frozenset(job.figures)
            for name, (value, unit) in job.figures.items():
                if not is_judged(name, unit, names):
                    continue
                alarms = raises_alarms(name, names)
                one = found.setdefault((job.key, name), Of(job.key, name, unit, alarms, [], []))
                if one.nights and one.nights[-1] == position:
                    one.values[-1].append(value)
                else:
                    one.nights.append(position)
                    one.values.append([value])
    return list(found.values())


def judge(history: History, known: References | None, *, last: int = 1) -> list[list[Verdict]]:
    """The verdicts of the last nights, oldest night first."""
    by_key = known.by_key() if known else {}
    wanted = range(max(0, len(history.nights) - last), len(history.nights))
    found: list[list[Verdict]] = [list(_without_figures(history.nights[position])) for position in wanted]
    every = figures(history.nights)
    limit = alarm_limit(sum(one.alarms and one.key in by_key for one in every))
    for one in every:
        series = by_key.get(one.key)
        usual = series.figures.get(one.figure) if series else None
        if series is None or usual is None:
            verdicts = _unknown(one, history.nights, known)
        else:
            verdicts = _of_figure(one, history.nights, usual, datetime.fromisoformat(series.first), limit)
        for position, verdict in verdicts:
            if position in wanted:
                found[position - wanted.start].append(verdict)
    return [_discovered(verdicts) for verdicts in found]


def alarm_limit(judged: int) -> float:
    """How small the chance of an alarm's evidence has to be, with so many figures."""
    return evidence.FALSE_ALARMS_A_YEAR / evidence.NIGHTS_A_YEAR / max(1, judged)


def _without_figures(night: Night) -> Iterator[Verdict]:
    """Of the tests all whose jobs failed that night."""
    good = {job.key for job in night.jobs if job.figures}
    seen: set[Key] = set()
    for job in night.jobs:
        if job.reason and job.key not in good | seen:
            seen.add(job.key)
            yield Verdict(night.name, night.began, job.key, "", "", "failed", 0, reason=job.reason)


def _unknown(one: Of, nights: Sequence[Night], known: References | None) -> Iterator[tuple[int, Verdict]]:
    jobs = 0
    for position, values in zip(one.nights, one.values, strict=True):
        jobs += len(values)
        fewest = references.FEWEST_JOBS
        reason = f"no reference, {jobs} of the {fewest} jobs that one takes" if jobs < fewest else "no reference yet"
        night = nights[position]
        yield position, Verdict(
            night.name, night.began, one.key, one.figure, one.unit, "unknown", len(values),
            value=median(values), reason=reason,
        )  # fmt: skip


def _of_figure(
    one: Of, nights: Sequence[Night], usual: references.Usual, since: datetime, limit: float
) -> Iterator[tuple[int, Verdict]]:
    """Night by night, from the first of the reference on."""
    sign = worse_by(one.unit)
    by_reference = evidence.from_reference(usual.mad, usual.median, usual.jobs)
    watch, followed = Watch(by_reference, limit), list[int]()
    for position, values in zip(one.nights, one.values, strict=True):
        night = nights[position]
        if night.began < since:
            continue
        logs = [sign * math.log(value / usual.median) for value in values]
        followed.append(position)
        alarm = watch.add(logs) if one.alarms else None
        yield (
            position,
            replace(
                _against(one, night, median(values), median(logs), len(logs), usual, by_reference),
                alarm=Alarm(nights[followed[alarm[0]]].name, *alarm[1:]) if alarm else None,
            ),
        )


def _against(
    one: Of, night: Night, value: float, effect: float, jobs: int, usual: references.Usual, expected: Usual
) -> Verdict:
    """A night against the reference, before other figures are looked at."""
    half = evidence.interval(expected, jobs)
    sign = worse_by(one.unit)
    ends = sorted(math.expm1(sign * end) for end in (effect - half, effect + half))
    beyond = abs(effect) > half and abs(math.expm1(effect)) >= evidence.LEAST
    return Verdict(
        night.name, night.began, one.key, one.figure, one.unit,
        ("slower" if effect > 0 else "faster") if beyond else "same",
        jobs, value=value, usual=usual.median, change=value / usual.median - 1, low=ends[0], high=ends[1],
        least=max(evidence.LEAST, math.expm1(evidence.visible(expected, jobs))),
        p=evidence.two_sided(expected, jobs, effect),
    )  # fmt: skip


def _discovered(verdicts: list[Verdict]) -> list[Verdict]:
    """With as many of a night called slower or faster as Benjamini and Hochberg allow."""
    p = sorted(verdict.p for verdict in verdicts if verdict.word in ("faster", "same", "slower"))
    held = [value for rank, value in enumerate(p, 1) if value <= FALSE_DISCOVERIES * rank / len(p)]
    most = max(held, default=0.0)
    return [
        replace(verdict, word="same") if verdict.word in ("faster", "slower") and verdict.p > most else verdict
        for verdict in verdicts
    ]


class Watch:
    """Follows a figure from night to night. A night is its jobs, each how much worse it is than the reference, as the
    natural logarithm. limit: of the chance of an alarm's evidence.
    """

    def __init__(self, by_reference: Usual, limit: float) -> None:
        self._by_reference, self._limit = by_reference, limit
        self._middle, self._nights = list[float](), list[Sequence[float]]()
        self._open: tuple[int, float, float] | None = None

    def looks_worse(self, jobs: Sequence[float]) -> bool:
        """Whether a night of these jobs is worth another one."""
        usual = expected(self._middle, 1, self._by_reference)
        return evidence.looks_worse(_lower(jobs), usual)

    def add(self, jobs: Sequence[float]) -> tuple[int, bool, float, float] | None:
        """A night; returns its alarm, if there is one: since which of the nights that were added, whether it is new, by
        how much, as a fraction, and the chance of its evidence.
        """
        at = len(self._middle)
        self._middle.append(median(jobs))
        self._nights.append(jobs)
        if self._open:
            began, level, chance = self._open
            if at <= began + 1 or max(self._middle[-2:]) - level >= STILL_WORSE:
                now = median(self._middle[max(began, at + 1 - LOOK_BACK) :]) - level
                return began, False, math.expm1(now), chance
            self._open = None
        window = min(LOOK_BACK, at + 1)
        usual = expected(self._middle[:-window], window, self._by_reference)
        if self._middle[-1] - usual.level < STILL_WORSE:
            return None
        found = evidence.strongest(self._nights[-window:], usual)
        if found.chance > self._limit:
            return None
        self._open = at + 1 - found.nights, usual.level, found.chance
        return at + 1 - found.nights, True, math.expm1(found.effect), found.chance


def _lower(jobs: Sequence[float]) -> float:
    """More than half of the jobs are as bad as this or worse."""
    return sorted(jobs)[(len(jobs) - 1) // 2]


def expected(before: Sequence[float], ahead: float, by_reference: Usual) -> Usual:
    """Of a night, by those before it; by the reference where they are too few."""
    return evidence.from_nights(np.array(before[-BASELINE:]), ahead) if len(before) >= FEWEST else by_reference


def suspects(history: History, known: References | None, tonight: Mapping[Key, Sequence[Job]]) -> list[Key]:
    """Of tonight's tests those with a figure that looks worse than before: what is worth another job tonight.

    history: of the nights before.
    """
    by_key = known.by_key() if known else {}
    before = {(one.key, one.figure): one for one in figures(history.nights)}
    found: list[Key] = []
    for key, jobs in tonight.items():
        series = by_key.get(key)
        for name, usual in (series.figures if series else {}).items():
            values = [job.figures[name][0] for job in jobs if name in job.figures]
            sign, one = worse_by(usual.unit), before.get((key, name))
            if not (values and series and sign and raises_alarms(name, frozenset(series.figures))):
                continue
            past = [
                sign * math.log(median(of) / usual.median)
                for position, of in (zip(one.nights, one.values, strict=True) if one else ())
                if history.nights[position].began >= datetime.fromisoformat(series.first)
            ]
            watch = Watch(evidence.from_reference(usual.mad, usual.median, usual.jobs), 0.0)
            for night in past:
                watch.add([night])
            if watch.looks_worse([sign * math.log(value / usual.median) for value in values]):
                found.append(key)
                break
    return found


def words(verdicts: Iterable[Verdict]) -> dict[Word, int]:
    """How many of each."""
    counted: dict[Word, int] = dict.fromkeys(("slower", "faster", "same", "unknown", "failed"), 0)
    for verdict in verdicts:
        counted[verdict.word] += 1
    return counted
