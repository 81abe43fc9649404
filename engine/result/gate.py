"""Intervals of confidence 0.95 of what was repeated, and gates that judge them. No torch, no pydantic."""

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist, mean, stdev
from typing import Literal, NamedTuple

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """Interval from low to high."""

    low: float
    high: float


NOTHING_KNOWN = Interval(0.0, math.inf)
"""Interval of a ratio that was measured too few times."""


def over_jobs(ratios: Sequence[float], looks: int = 1, usual: float | None = None) -> Interval:
    """Give the interval of ratios, one a job, by Student's t of their logarithms; of one job nothing is known.

    looks: how often an interval may be asked for, each time of more jobs, until it decides. The chance to be wrong is
    shared among them (Bonferroni), so that all of them together have CONFIDENCE. usual: the standard deviation of those
    logarithms, where it is taken to be known until three jobs show their own; two that differ by more than it
    explains show their own, too. Raises ValueError for a ratio that isn't positive.
    """
    logs = [math.log(ratio) for ratio in ratios]
    by_usual = NormalDist().inv_cdf((1 + _confidence(looks)) / 2) * (usual or 0.0)
    if usual is not None and 0 < len(logs) < 3 and max(logs) - min(logs) <= math.sqrt(2) * by_usual:
        reach = by_usual
    elif len(logs) < 2:
        return NOTHING_KNOWN
    else:
        reach = student(len(logs) - 1, _confidence(looks)) * stdev(logs)
    reach /= math.sqrt(len(logs))
    return Interval(math.exp(mean(logs) - reach), math.exp(mean(logs) + reach))


def over_rounds(ratios: Sequence[float], looks: int = 1) -> Interval:
    """Give the interval of the median of ratios, one a round, by their order: as many are left out at both ends as
    chance allows.

    It asks nothing of how they are distributed. Of fewer than six rounds nothing is known: the whole range of five
    holds the median with confidence 1 - 2 * 0.5**5 = 0.94. looks: as of over_jobs.
    """
    ordered, left_out, tail, most = sorted(ratios), 0, 0.5 ** len(ratios), 1 - _confidence(looks)
    if 2 * tail > most:
        return NOTHING_KNOWN
    while True:
        tail += math.comb(len(ordered), left_out + 1) * 0.5 ** len(ordered)
        if 2 * tail > most:
            return Interval(ordered[left_out], ordered[-1 - left_out])
        left_out += 1


def _confidence(looks: int) -> float:
    """Give the confidence of one of so many looks."""
    return 1 - (1 - CONFIDENCE) / looks


@cache
def student(freedom: int, confidence: float) -> float:
    """Give how far from 0 Student's t is at most, with that confidence. ci/gpu's machine needn't have scipy."""
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t by the root of freedom
    while high - low > 1e-14:
        angle = (low + high) / 2
        low, high = (angle, high) if _chance(freedom, angle) < confidence else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _chance(freedom: int, angle: float) -> float:
    """Give the chance that |t| is smaller (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    sine, cosine, odd = math.sin(angle), math.cos(angle), freedom % 2
    total, term = 0.0, cosine if odd else 1.0
    for power in range(odd, freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


Outcome = Literal["pass", "fail", "undecided"]


def at_most(interval: Interval, limit: float) -> Outcome:
    """Pass if the whole interval is at or below the limit, fail if all of it is above; NaN is undecided."""
    return "pass" if interval.high <= limit else "fail" if interval.low > limit else "undecided"


def at_least(interval: Interval, limit: float) -> Outcome:
    """Pass if the whole interval is at or above the limit, fail if all of it is below; NaN is undecided."""
    return "pass" if interval.low >= limit else "fail" if interval.high < limit else "undecided"


def within(interval: Interval, low: float, high: float) -> Outcome:
    """Pass if the whole interval lies between two limits, fail if none of it does; NaN is undecided."""
    return all_of(at_least(interval, low), at_most(interval, high))


def all_of(*outcomes: Outcome) -> Outcome:
    """Judge several gates together: fail if one fails, else undecided if one is, else pass; undecided of none."""
    if "fail" in outcomes:
        return "fail"
    return "pass" if outcomes and "undecided" not in outcomes else "undecided"
