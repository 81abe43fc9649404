"""Each figure of a night is judged by the nights before it, since the first of its reference (detector.py).

A figure without a reference, or of fewer than FEWEST nights, is unknown, never the same. As a change takes three
nights, the two after those can only be far off. What isn't measured any more doesn't pass, for GIVEN_UP nights.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import median

from scipy.special import stdtrit

from reports.nights.detector import FEWEST, WINDOWS, Follower, limit_of
from reports.nights.figures import MOVED_BY_OTHERS, FigureHistory, Verdict, Word, figures
from reports.nights.history import History, Night, NightJob
from systems.references import CANARY, FEWEST_JOBS, LEAST, Key, Reference, References, worse_by

GIVEN_UP = 12
"""An alarm is given up when its figure wasn't measured in so many nights."""
CONFIDENCE = 0.95


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
        if jobs and one.references and one.share >= 1 and one.key not in found:
            watch = Follower(limit)
            for earlier in one.since(history.nights).values():
                watch.add(*one.followed(earlier))
            if watch.looks_worse(*one.followed(jobs)):
                found.append(one.key)
    return found
