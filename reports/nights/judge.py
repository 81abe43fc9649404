"""Each figure of a night is judged by its reference, and by the nights before.

A verdict compares a night's median with the reference: slower (or faster) is what lies beyond the interval, by at least
LEAST, and stays so among all figures of the night (Benjamini and Hochberg 1995, at FALSE_DISCOVERIES). An alarm takes
more: evidence that chance gives less than FALSE_ALARMS_A_YEAR times a year in all figures of a system (evidence.py).
A figure without a reference is unknown, never the same.
"""

import math
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import dropwhile
from statistics import median

from reports.nights import evidence
from reports.nights.evidence import LOOK_BACK, Expected
from reports.nights.figures import MOVED_BY_OTHERS, FigureHistory, figures, share
from reports.nights.history import History, Night, NightJob
from reports.nights.verdicts import Alarm, Verdict, Word
from reports.nights.watch import Watch
from systems import references
from systems.references import Key, Reference, References, ReferenceSet, worse_by

FALSE_DISCOVERIES = 0.05
"""At most this part of the figures of a night that are called slower or faster is so by chance, on average."""
NOTHING_KEPT = "ReFrame has kept nothing of it, as where the night's time limit is reached"
"""A night had to run a test of which there is no job."""


def judge(history: History, known: References | None, *, last: int = 1) -> list[list[Verdict]]:
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
            verdicts = dict(_unknown(one))
        else:
            verdicts = dict(_of_figure(one, history.nights, series, usual, limit, count))
            verdicts |= dict(_absent(one, verdicts, ran, wanted))
        for position in verdicts.keys() & wanted:
            found[position - wanted.start].append(verdicts[position])
    return [_once(discovered(verdicts)) for verdicts in found]


def _judged(every: Iterable[FigureHistory], by_key: Mapping[Key, ReferenceSet]) -> tuple[int, float]:
    """Count the figures that have a reference; the second number limits the chance of a steady one's evidence."""
    known = [one for one in every if one.key in by_key and one.figure in by_key[one.key].figures]
    return len(known), alarm_limit(sum(share(one.figure, by_key[one.key].figures) for one in known))


def _absent(
    one: FigureHistory, verdicts: Mapping[int, Verdict], ran: Sequence[Container[tuple[str, str]]], wanted: range
) -> Iterator[tuple[int, Verdict]]:
    """Judge nights without the figure. Nothing passes unmeasured where the test has run. Where it hasn't, an alarm
    stays for LOOK_BACK nights, and the next one says that it is given up.
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
            alarm = replace(alarm, new=False) if alarm else None
            yield position, Verdict(one.key, one.figure, one.unit, "unknown", 0, reason=reason, alarm=alarm)


def _once(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """Leave one alarm for the same work: that of the steadier figure."""
    alarmed = {(verdict.key, verdict.figure) for verdict in verdicts if verdict.alarm}
    return [
        replace(verdict, alarm=None) if (verdict.key, MOVED_BY_OTHERS.get(verdict.figure)) in alarmed else verdict
        for verdict in verdicts
    ]


def alarm_limit(judged: float) -> float:
    """The chance of an alarm's evidence has to be so small, with so many figures."""
    return evidence.FALSE_ALARMS_A_YEAR / evidence.NIGHTS_A_YEAR / max(1, judged)


def by_test(jobs: Iterable[NightJob]) -> dict[tuple[str, str, str], list[NightJob]]:
    """Group jobs by partition, test and point, which is what is left of a key where a job has no result."""
    found: dict[tuple[str, str, str], list[NightJob]] = {}
    for job in jobs:
        found.setdefault((job.key.partition, job.key.test, job.key.point), []).append(job)
    return found


def _without_result(night: Night) -> Iterator[Verdict]:
    for jobs in by_test(night.jobs).values():
        failed = [job for job in jobs if job.failed]
        without = failed or [job for job in jobs if job.reason and not any(job.figures for job in jobs)]
        if without:
            of = f"{len(failed)} of {len(jobs)} jobs: " if 0 < len(failed) < len(jobs) else ""
            word: Word = "failed" if failed else "unknown"
            yield Verdict(without[0].key, "", "", word, 0, reason=f"{of}{without[0].reason}")
    there = {job.key.name for job in night.jobs}
    for test, point in night.chosen:
        if (test, point) not in there:
            yield Verdict(Key("", test, point, "", 0, "", ""), "", "", "unknown", 0, reason=NOTHING_KEPT)


def _unknown(one: FigureHistory) -> Iterator[tuple[int, Verdict]]:
    jobs, fewest = 0, references.FEWEST_JOBS
    for position, values in zip(one.nights, one.values, strict=True):
        jobs += len(values)
        why = f"no reference, {jobs} of the {fewest} jobs that one takes" if jobs < fewest else "no reference yet"
        value = median(values)
        yield position, Verdict(one.key, one.figure, one.unit, "unknown", len(values), value=value, reason=why)


def _of_figure(
    one: FigureHistory, nights: Sequence[Night], series: ReferenceSet, usual: Reference, limit: float, judged: int
) -> Iterator[tuple[int, Verdict]]:
    """Judge night by night, from the first of the reference on, where so many figures of the system are judged."""
    by_reference = evidence.from_reference(usual)
    watch, followed = Watch(by_reference, limit * share(one.figure, series.figures)), list[int]()
    for position, values in _with_reference(one, nights, series):
        logs = _worse_than(usual, values)
        followed.append(position)
        new = watch.add(logs)
        alarm = Alarm(nights[followed[new[0]]].name, *new[1:]) if new else None
        yield position, _against(one, median(values), median(logs), len(logs), usual, by_reference, judged, alarm)


def _with_reference(
    one: FigureHistory, nights: Sequence[Night], series: ReferenceSet
) -> Iterator[tuple[int, list[float]]]:
    """Leave out nights before the first of the reference, by the order of storing: a clock may run backwards."""
    since = datetime.fromisoformat(series.first)
    return dropwhile(lambda of: nights[of[0]].began < since, zip(one.nights, one.values, strict=True))


def _worse_than(usual: Reference, values: Iterable[float]) -> list[float]:
    """Return by how much each is worse than the reference, as the natural logarithm."""
    return [worse_by(usual.unit) * math.log(value / usual.median) for value in values]


def _against(
    one: FigureHistory, value: float, effect: float, jobs: int, usual: Reference, expected: Expected, judged: int,
    alarm: Alarm | None,
) -> Verdict:  # fmt: skip
    """Compare a night with the reference, before other figures are looked at."""
    half = evidence.interval(expected, jobs)
    sign = worse_by(one.unit)
    ends = sorted(math.expm1(sign * end) for end in (effect - half, effect + half))
    counts = abs(math.expm1(effect)) >= evidence.LEAST
    beyond = counts and abs(effect) > half
    return Verdict(
        one.key, one.figure, one.unit, ("slower" if effect > 0 else "faster") if beyond else "same", jobs,
        value=value, usual=usual.median, change=value / usual.median - 1, low=ends[0], high=ends[1], alarm=alarm,
        least=max(evidence.LEAST, math.expm1(evidence.visible(expected, jobs, FALSE_DISCOVERIES / judged))),
        p=evidence.two_sided(expected, jobs, effect) if counts else 1.0,
    )  # fmt: skip


def discovered(verdicts: list[Verdict]) -> list[Verdict]:
    """Call as many of a night slower or faster as Benjamini and Hochberg allow."""
    p = sorted(verdict.p for verdict in verdicts if verdict.word in ("faster", "same", "slower"))
    held = [value for rank, value in enumerate(p, 1) if value <= FALSE_DISCOVERIES * rank / len(p)]
    most = max(held, default=0.0)
    return [
        replace(verdict, word="same") if verdict.word in ("faster", "slower") and verdict.p > most else verdict
        for verdict in verdicts
    ]


def suspects(history: History, known: References | None, tonight: Mapping[Key, Sequence[NightJob]]) -> list[Key]:
    """Find the tests of tonight with a figure that looks worse than in the nights before: another job is worth it."""
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
