"""Each figure of a night is judged by the nights before it, since the first of its reference (detector.py).

A figure without a reference, or of fewer than FEWEST nights, is unknown, never the same. As a change takes three
nights, the two after those can only be far off. What isn't measured any more doesn't pass, for GIVEN_UP nights.
"""

import math
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import dropwhile
from statistics import median

from scipy.special import stdtrit

from reports.nights.detector import FEWEST, WINDOWS, Follower, Noise, Step, limit_of
from reports.nights.figures import MOVED_BY_OTHERS, FigureHistory, figures, share
from reports.nights.history import History, Night, NightJob
from reports.nights.verdicts import Alarm, Verdict, Word
from systems.references import CANARY, FEWEST_JOBS, LEAST, Key, Reference, References, ReferenceSet, worse_by

NOTHING_KEPT = "ReFrame has kept nothing of it, as where the night's time limit is reached"
"""A night had to run a test of which there is no job."""
GIVEN_UP = 12
"""An alarm is given up when its figure wasn't measured in so many nights."""
CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Judged:
    """A figure has verdicts, by the position of the night, and its level has changed with some nights: by the sum of
    the steps that begin with the same one.
    """

    of: FigureHistory
    verdicts: Mapping[int, Verdict]
    changes: Mapping[int, Step]


def judged(history: History, known: References | None) -> list[Judged]:
    """Judge each figure in all nights that have it, or miss it."""
    by_key = known.by_key() if known else {}
    every = figures(history.nights)
    limit = _limit(every, by_key)
    ran = [{job.key.name for job in night.jobs} for night in history.nights]
    found = [_figure(one, history.nights, by_key.get(one.key), limit, ran) for one in every]
    by_name = {(one.of.key, one.of.figure): one for one in found}
    return [_beside(one, by_name.get((one.of.key, MOVED_BY_OTHERS.get(one.of.figure, "")))) for one in found]


def _beside(one: Judged, steadier: Judged | None) -> Judged:
    """Of the same work one alarm is left, that of the steadier figure."""
    if steadier is None:
        return one
    said = {
        at: replace(verdict, alarm=None, reason=verdict.reason or f"its alarm is that of {steadier.of.figure}")
        for at, verdict in one.verdicts.items()
        if verdict.alarm and (other := steadier.verdicts.get(at)) and other.alarm
    }
    return replace(one, verdicts={**one.verdicts, **said})


def verdicts_of(history: History, every: Iterable[Judged], position: int) -> list[Verdict]:
    """List a night's verdicts: of figures, and of tests without a result."""
    found = [*_without_result(history.nights[position])]
    return found + [one.verdicts[position] for one in every if position in one.verdicts]


def _limit(every: Iterable[FigureHistory], by_key: Mapping[Key, ReferenceSet]) -> float:
    """Limit the chance of a steady figure's change, by how many figures have a reference."""
    known = [one for one in every if one.key in by_key and one.figure in by_key[one.key].figures]
    return limit_of(sum(share(one.figure, by_key[one.key].figures) for one in known))


def _figure(
    one: FigureHistory, nights: Sequence[Night], series: ReferenceSet | None, limit: float,
    ran: Sequence[Container[tuple[str, str]]],
) -> Judged:  # fmt: skip
    usual = series.figures.get(one.figure) if series else None
    if series is None or usual is None:
        return Judged(one, dict(_unknown(one)), {})
    verdicts, changes = dict[int, Verdict](), dict[int, Step]()
    watch = Follower(limit * share(one.figure, series.figures))
    followed = list[int]()
    for position, values, canary in _since(one, nights, series):
        if followed and position - followed[-1] > GIVEN_UP + 1:
            watch.worse.clear()
        followed.append(position)
        level = -sum(each.left for each in watch.worse)
        found = watch.add(*_as_followed(one, values, canary))
        if found:
            first = followed[len(followed) - found.nights]
            changes[first] = replace(found, size=found.size + changes[first].size) if first in changes else found
        alarm = None
        if watch.worse:
            last = watch.worse[-1]
            began = nights[followed[last.since]].name
            alarm = Alarm(began, last.step is found, math.expm1(last.left))
        lately = any(step.size < 0 for at, step in changes.items() if at in followed[-WINDOWS[-1] :])
        word: Word = "worse" if alarm else "better" if lately else "same"
        verdicts[position] = _verdict(one, values, watch.last(), level, usual, len(followed), word, alarm)
    if one.figure == CANARY:  # it runs in ci/nightly's jobs alone
        ran = [names if night.nightly else () for names, night in zip(ran, nights, strict=True)]
    return Judged(one, verdicts | dict(_absent(one, verdicts, ran)), changes)


def _since(
    one: FigureHistory, nights: Sequence[Night], series: ReferenceSet
) -> Iterator[tuple[int, list[float], list[float]]]:
    """Leave out nights before the first of the reference, by the order of storing: a clock may run backwards."""
    since = datetime.fromisoformat(series.first)
    every = zip(one.nights, one.values, one.canary, strict=True)
    return dropwhile(lambda of: nights[of[0]].began < since, every)


def _as_followed(
    one: FigureHistory, values: Iterable[float], canary: Iterable[float]
) -> tuple[list[float], list[float]]:
    """Give how bad each job is, and its canary, as natural logarithms."""
    return [worse_by(one.unit) * math.log(value) for value in values], [math.log(value) for value in canary]


def _verdict(
    one: FigureHistory, values: Sequence[float], last: tuple[Noise, float] | None, level: float, usual: Reference,
    nights: int, word: Word, alarm: Alarm | None,
) -> Verdict:  # fmt: skip
    """Set a night against what is expected of it with this mood. level: what open alarms have moved that by."""
    value, sign = median(values), worse_by(one.unit)
    if last is None:
        why = f"{nights - 1} of the {FEWEST} nights before that tell what is usual"
        return Verdict(one.key, one.figure, one.unit, "unknown", len(values), value=value, reason=why)
    expected, now = last
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


def _absent(
    one: FigureHistory, verdicts: Mapping[int, Verdict], ran: Sequence[Container[tuple[str, str]]]
) -> Iterator[tuple[int, Verdict]]:
    """Judge GIVEN_UP nights without the figure. None passes where the test has run; where it hasn't, an alarm stays,
    and the next night says that it is given up.
    """
    for position in range(len(ran)):
        last = one.nights[bisect_left(one.nights, position) - 1]
        missed = position - last
        if not 0 < missed <= GIVEN_UP + 1 or last not in verdicts or position in verdicts:
            continue
        alarm, given_up = verdicts[last].alarm, missed > GIVEN_UP
        if alarm or (one.key.name in ran[position] and not given_up):
            reason = "it was not measured" if one.key.name in ran[position] else "its test was not run"
            if given_up:
                alarm, reason = None, f"its alarm is given up, as it was not measured in {GIVEN_UP} nights"
            alarm = replace(alarm, new=False) if alarm else None
            yield position, Verdict(one.key, one.figure, one.unit, "unknown", 0, reason=reason, alarm=alarm)


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
    jobs = 0
    for position, values in zip(one.nights, one.values, strict=True):
        jobs += len(values)
        of = f", {jobs} of the {FEWEST_JOBS} jobs that one takes" if jobs < FEWEST_JOBS else " yet"
        value = median(values)
        yield (
            position,
            Verdict(one.key, one.figure, one.unit, "unknown", len(values), value=value, reason=f"no reference{of}"),
        )


def suspects(history: History, known: References | None, tonight: Mapping[Key, Sequence[NightJob]]) -> list[Key]:
    """Find the tests of tonight with a figure that looks worse than in the nights before: another job is worth it."""
    by_key = known.by_key() if known else {}
    every = figures(history.nights)
    limit = _limit(every, by_key)
    found: list[Key] = []
    for one in every:
        series, jobs = by_key.get(one.key), tonight.get(one.key, ())
        of_one = FigureHistory(one.key, one.figure, one.unit, [], [], [])
        for job in jobs:
            of_one.add(len(history.nights), job)
        if not of_one.nights or series is None or share(one.figure, series.figures) < 1 or one.key in found:
            continue
        watch = Follower(limit)
        for _, *of in _since(one, history.nights, series):
            watch.add(*_as_followed(one, *of))
        if watch.looks_worse(*_as_followed(one, of_one.values[0], of_one.canary[0])):
            found.append(one.key)
    return found
