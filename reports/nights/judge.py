"""Verdicts: each figure of a night against its reference, and whether it got worse against the nights before.

A verdict compares a night's median with the reference: slower (or faster) is what lies beyond the interval, by at least
LEAST, and stays so among all figures of the night (Benjamini and Hochberg 1995, at FALSE_DISCOVERIES). An alarm takes
more: evidence that chance gives less than FALSE_ALARMS_A_YEAR times a year in all figures of a system (evidence.py).
A figure without a reference is unknown, never the same.
"""

import math
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import dropwhile
from statistics import median
from typing import Literal

import numpy as np

from reports.nights import evidence
from reports.nights.evidence import BASELINE, FEWEST_NIGHTS, LOOK_BACK, Expected
from reports.nights.figures import MOVED_BY_OTHERS, is_judged, share
from reports.nights.history import History, Job, Night
from systems import references
from systems.references import Key, References, Series, worse_by

Word = Literal["faster", "same", "slower", "unknown", "failed"]
FALSE_DISCOVERIES = 0.05
"""Of the figures of a night that are called slower or faster, at most so many by chance, on average."""
STILL_WORSE = 0.5
"""Of its effect: an alarm ends with two nights in a row that are worse by less."""
LASTS = 6
"""Nights that a gain has to last: a few good ones are luck."""


ALARMED = ", ALARM"
"""Behind the word of a verdict."""
NOTHING_KEPT = "ReFrame has kept nothing of it, as where the night's time limit is reached"
"""Why a test that a night had to run has no result."""


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
    """On a figure of a test in a night; of a test without a result on all of them, the figure being "".

    value: the median of the night's jobs. usual: that of the reference. change: value by usual, less one, with its
    interval; least: the smallest change that so many jobs are likely to show, if no other figure changes. p: of the
    change, two-sided, 1 for one that doesn't count. reason: why it failed or is unknown.
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
    def said(self) -> str:
        """The word, and whether there is an alarm."""
        return f"{self.word}{ALARMED}" if self.alarm else self.word


@dataclass(frozen=True, slots=True)
class Of:
    """A figure through the nights: of each that has it, the values of its jobs, in the order of the nights."""

    key: Key
    figure: str
    unit: str
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
                one = found.setdefault((job.key, name), Of(job.key, name, unit, [], []))
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
    found: list[list[Verdict]] = [list(_without_result(history.nights[position])) for position in wanted]
    every = figures(history.nights)
    count, limit = _judged(every, by_key)
    ran = [{job.key.name for job in night.jobs} for night in history.nights]
    for one in every:
        series = by_key.get(one.key)
        usual = series.figures.get(one.figure) if series else None
        if series is None or usual is None:
            verdicts = dict(_unknown(one, history.nights))
        else:
            verdicts = dict(_of_figure(one, history.nights, series, usual, limit, count))
            verdicts |= dict(_absent(one, history.nights, verdicts, ran, wanted))
        for position in verdicts.keys() & wanted:
            found[position - wanted.start].append(verdicts[position])
    return [_once(discovered(verdicts)) for verdicts in found]


def _judged(every: Iterable[Of], by_key: Mapping[Key, Series]) -> tuple[int, float]:
    """How many of these figures have a reference, and the limit of the chance of the evidence of a steady one."""
    known = [one for one in every if one.key in by_key and one.figure in by_key[one.key].figures]
    return len(known), alarm_limit(sum(share(one.figure, by_key[one.key].figures) for one in known))


def _absent(
    one: Of,
    nights: Sequence[Night],
    verdicts: Mapping[int, Verdict],
    ran: Sequence[Container[tuple[str, str]]],
    wanted: Iterable[int],
) -> Iterator[tuple[int, Verdict]]:
    """Of nights without the figure. Nothing passes unmeasured where the test has run. Where it hasn't, an alarm stays
    for LOOK_BACK nights, and the next one tells that it is given up.
    """
    for position in wanted:
        if position in verdicts:
            continue
        last = one.nights[bisect_left(one.nights, position) - 1]
        missed = position - last
        if not 0 < missed <= LOOK_BACK + 1 or last not in verdicts:
            continue
        alarm, given_up = verdicts[last].alarm, missed > LOOK_BACK
        if alarm or (one.key.name in ran[position] and not given_up):
            reason = "it was not measured" if one.key.name in ran[position] else "its test was not run"
            if given_up:
                alarm, reason = None, f"its alarm is given up, as it was not measured in {LOOK_BACK} nights"
            night = nights[position]
            yield position, Verdict(
                night.name, night.began, one.key, one.figure, one.unit, "unknown", 0, reason=reason,
                alarm=replace(alarm, new=False) if alarm else None,
            )  # fmt: skip


def _once(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """With one alarm for the same work: that of the steadier figure."""
    alarmed = {(verdict.key, verdict.figure) for verdict in verdicts if verdict.alarm}
    return [
        replace(verdict, alarm=None) if (verdict.key, MOVED_BY_OTHERS.get(verdict.figure)) in alarmed else verdict
        for verdict in verdicts
    ]


def alarm_limit(judged: float) -> float:
    """How small the chance of an alarm's evidence has to be, with so many figures."""
    return evidence.FALSE_ALARMS_A_YEAR / evidence.NIGHTS_A_YEAR / max(1, judged)


def by_test(jobs: Iterable[Job]) -> dict[tuple[str, str, str], list[Job]]:
    """By partition, test and point: what is left of a key where a job has no result."""
    found: dict[tuple[str, str, str], list[Job]] = {}
    for job in jobs:
        found.setdefault((job.key.partition, job.key.test, job.key.point), []).append(job)
    return found


def _no_result(night: Night, key: Key, reason: str, *, failed: bool = False) -> Verdict:
    """On a test that has none."""
    return Verdict(night.name, night.began, key, "", "", "failed" if failed else "unknown", 0, reason=reason)


def _without_result(night: Night) -> Iterator[Verdict]:
    """Of the tests with a job that failed that night, and of those none of whose jobs has one."""
    for jobs in by_test(night.jobs).values():
        failed = [job for job in jobs if job.failed]
        told = failed or [job for job in jobs if job.reason and not any(job.figures for job in jobs)]
        if told:
            of = f"{len(failed)} of {len(jobs)} jobs: " if 0 < len(failed) < len(jobs) else ""
            yield _no_result(night, told[0].key, f"{of}{told[0].reason}", failed=bool(failed))
    there = {job.key.name for job in night.jobs}
    for test, point in night.chosen:
        if (test, point) not in there:
            yield _no_result(night, Key("", test, point, "", 0, "", ""), NOTHING_KEPT)


def _unknown(one: Of, nights: Sequence[Night]) -> Iterator[tuple[int, Verdict]]:
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
    one: Of, nights: Sequence[Night], series: Series, usual: references.Reference, limit: float, judged: int
) -> Iterator[tuple[int, Verdict]]:
    """Night by night, from the first of the reference on. judged: figures of the system."""
    by_reference = evidence.from_reference(usual)
    watch, followed = Watch(by_reference, limit * share(one.figure, series.figures)), list[int]()
    for position, values in _with_reference(one, nights, series):
        night = nights[position]
        logs = _worse_than(usual, values)
        followed.append(position)
        alarm = watch.add(logs)
        yield (
            position,
            replace(
                _against(one, night, median(values), median(logs), len(logs), usual, by_reference, judged),
                alarm=Alarm(nights[followed[alarm[0]]].name, *alarm[1:]) if alarm else None,
            ),
        )


def _with_reference(one: Of, nights: Sequence[Night], series: Series) -> Iterator[tuple[int, list[float]]]:
    """The nights of a figure from the first of its reference on, by the order of storing: a clock may run backwards."""
    since = datetime.fromisoformat(series.first)
    return dropwhile(lambda of: nights[of[0]].began < since, zip(one.nights, one.values, strict=True))


def _worse_than(usual: references.Reference, values: Iterable[float]) -> list[float]:
    """By how much each is worse than the reference, as the natural logarithm."""
    return [worse_by(usual.unit) * math.log(value / usual.median) for value in values]


def _against(
    one: Of, night: Night, value: float, effect: float, jobs: int, usual: references.Reference, expected: Expected,
    judged: int,
) -> Verdict:  # fmt: skip
    """A night against the reference, before other figures are looked at."""
    half = evidence.interval(expected, jobs)
    sign = worse_by(one.unit)
    ends = sorted(math.expm1(sign * end) for end in (effect - half, effect + half))
    counts = abs(math.expm1(effect)) >= evidence.LEAST
    beyond = counts and abs(effect) > half
    return Verdict(
        night.name, night.began, one.key, one.figure, one.unit,
        ("slower" if effect > 0 else "faster") if beyond else "same",
        jobs, value=value, usual=usual.median, change=value / usual.median - 1, low=ends[0], high=ends[1],
        least=max(evidence.LEAST, math.expm1(evidence.visible(expected, jobs, FALSE_DISCOVERIES / judged))),
        p=evidence.two_sided(expected, jobs, effect) if counts else 1.0,
    )  # fmt: skip


def discovered(verdicts: list[Verdict]) -> list[Verdict]:
    """With as many of a night called slower or faster as Benjamini and Hochberg allow."""
    p = sorted(verdict.p for verdict in verdicts if verdict.word in ("faster", "same", "slower"))
    held = [value for rank, value in enumerate(p, 1) if value <= FALSE_DISCOVERIES * rank / len(p)]
    most = max(held, default=0.0)
    return [
        replace(verdict, word="same") if verdict.word in ("faster", "slower") and verdict.p > most else verdict
        for verdict in verdicts
    ]


@dataclass(frozen=True, slots=True)
class _Gain:
    """A change for the better. began: the first of the nights that are; usual: what had been expected of them."""

    began: int
    usual: Expected


@dataclass(frozen=True, slots=True)
class _Open:
    """An alarm that has been raised. began: the first of the nights that are worse; usual: what had been expected of
    them; effect, chance: as of evidence.Evidence.
    """

    began: int
    usual: Expected
    effect: float
    chance: float

    def is_over(self, middle: Sequence[float]) -> bool:
        """By the nights so far."""
        two = middle[max(self.began, len(middle) - 2) :]
        return len(two) == 2 and max(two) - self.usual.level < STILL_WORSE * self.effect


class Watch:
    """Follows a figure from night to night. A night is its jobs, each how much worse it is than the reference, as the
    natural logarithm. limit: of the chance of an alarm's evidence.

    While an alarm is open, what got worse still is found against the nights since then; the newest alarm is told. A
    gain, by evidence as strong, is what is usual from then on: to lose it is a change for the worse.
    """

    def __init__(self, by_reference: Expected, limit: float) -> None:
        self._by_reference, self._limit = by_reference, limit
        self._middle, self._nights = list[float](), list[Sequence[float]]()
        self._ends = list[tuple[float, float]]()
        self._open = list[_Open]()
        self._bad, self._over = set[int](), 0
        self._gain: _Gain | None = None

    def looks_worse(self, jobs: Sequence[float]) -> bool:
        """Whether a night of these jobs is worth another one."""
        if self._open:
            usual = _since(self._open[-1].usual, self._middle[self._open[-1].began :])
        else:
            usual = self._expected(len(self._middle), 1)
        so_before = bool(self._middle) and evidence.looks_worse(self._middle[-1], usual)
        return evidence.looks_worse(_lower(jobs), usual, so_before)

    def add(self, jobs: Sequence[float]) -> tuple[int, bool, float, float] | None:
        """A night; returns its alarm, if there is one: since which of the nights that were added, whether it is new, by
        how much, as a fraction, and the chance of its evidence.
        """
        self._middle.append(median(jobs))
        self._nights.append(jobs)
        self._ends.append((min(jobs), max(jobs)))
        while self._open and self._open[-1].is_over(self._middle):
            self._over = len(self._middle) - 2
            self._bad.update(range(self._open.pop().began, self._over))
        new = self._new()
        if new:
            self._open.append(new)
        if not self._open:
            self._gain = self._gained() or self._gain
            return None
        alarm = self._open[-1]
        now = median(self._middle[max(alarm.began, len(self._middle) - LOOK_BACK) :]) - alarm.usual.level
        return alarm.began, new is not None, math.expm1(now), alarm.chance

    def _expected(self, until: int, ahead: float) -> Expected:
        """So many nights later, by the usual nights up to then; where they are too few, by the reference, or by what
        was expected before a gain, which only moves the level.
        """
        before = self._usual(until)
        if len(before) >= FEWEST_NIGHTS:
            return self._by_nights(before, ahead, 1)
        return _since(self._gain.usual, self._middle[self._gain.began : until]) if self._gain else self._by_reference

    def _usual(self, until: int) -> list[int]:
        """The nights up to then that tell what is usual: since the last gain, without those of alarms that are over."""
        began = self._gain.began if self._gain else 0
        return [at for at in range(began, until) if at not in self._bad][-BASELINE:]

    def _by_nights(self, before: Sequence[int], ahead: float, sign: int) -> Expected:
        """sign: -1 for what is expected with all signs turned."""
        middle = [sign * self._middle[at] for at in before]
        least = [sign * self._ends[at][0 if sign > 0 else 1] for at in before]
        return evidence.from_nights(np.array(middle), ahead, np.array(least))

    def _gained(self) -> _Gain | None:
        """The gain that the last night shows: what would be an alarm with all signs turned, and has lasted. Until
        enough nights tell what is usual since the last one, none is looked for.
        """
        count = len(self._middle)
        window = min(LOOK_BACK, count - self._over)
        before = self._usual(count - window)
        if len(before) >= FEWEST_NIGHTS:
            turned = self._by_nights(before, window, -1)
        elif self._gain:
            return None
        else:
            turned = self._by_reference
        if window < LASTS or -self._middle[-1] - turned.level < STILL_WORSE * evidence.LEAST_EFFECT:
            return None
        found = evidence.strongest([[-job for job in night] for night in self._nights[-window:]], turned)
        if found.nights < LASTS or found.chance > self._limit:
            return None
        return _Gain(count - found.nights, self._expected(count - window, window))

    def _new(self) -> _Open | None:
        """The alarm that the last night raises, beside those that are open."""
        count = len(self._middle)
        if self._open:
            since = self._middle[self._open[-1].began :]
            window = min(LOOK_BACK, len(since) // 2)
            usual = _since(self._open[-1].usual, since[: len(since) - window])
        else:
            window = min(LOOK_BACK, count - self._over)  # what an alarm has told proves nothing new
            if self._gain:
                window = min(window, (count - self._gain.began) // 2)
            usual = self._expected(count - window, window)
        if not window or self._middle[-1] - usual.level < STILL_WORSE * evidence.LEAST_EFFECT:
            return None
        found = evidence.strongest(self._nights[-window:], usual)
        return _Open(count - found.nights, usual, found.effect, found.chance) if found.chance <= self._limit else None


def _since(usual: Expected, nights: Sequence[float]) -> Expected:
    """What is expected once so many nights were worse."""
    error = usual.scale * math.sqrt(evidence.VARIANCE_OF_MEDIAN / len(nights))
    return replace(usual, level=median(nights), error=error)


def _lower(jobs: Sequence[float]) -> float:
    """More than half of the jobs are as bad as this or worse."""
    return sorted(jobs)[(len(jobs) - 1) // 2]


def suspects(history: History, known: References | None, tonight: Mapping[Key, Sequence[Job]]) -> list[Key]:
    """Of tonight's tests those with a figure that looks worse than before: what is worth another job tonight.

    history: of the nights before.
    """
    by_key = known.by_key() if known else {}
    every = figures(history.nights)
    before = {(one.key, one.figure): one for one in every}
    _, limit = _judged(every, by_key)
    found: list[Key] = []
    for key, jobs in tonight.items():
        series = by_key.get(key)
        for name, usual in (series.figures if series else {}).items():
            values = [job.figures[name][0] for job in jobs if name in job.figures]
            one = before.get((key, name))
            if not (values and series and share(name, series.figures) == 1):
                continue
            watch = Watch(evidence.from_reference(usual), limit)
            for _, of in _with_reference(one, history.nights, series) if one else ():
                watch.add(_worse_than(usual, of))
            if watch.looks_worse(_worse_than(usual, values)):
                found.append(key)
                break
    return found


def words(verdicts: Iterable[Verdict]) -> dict[Word, int]:
    """How many of each."""
    counted: dict[Word, int] = dict.fromkeys(("slower", "faster", "same", "unknown", "failed"), 0)
    for verdict in verdicts:
        counted[verdict.word] += 1
    return counted
