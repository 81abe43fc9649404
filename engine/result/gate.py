"""Intervals of confidence 0.95 of what was repeated, and gates that judge them. No torch, no pydantic.

What is repeated decides what an interval speaks of: jobs, of other jobs on that machine; rounds of one job, of that job
alone.
"""

import math
from collections.abc import Sequence
from functools import cache
from statistics import NormalDist, mean, stdev
from typing import Literal, NamedTuple

CONFIDENCE = 0.95

Outcome = Literal["pass", "fail", "undecided"]
"""Outcome of every check in the tree. Undecided never counts as passed: it takes longer or repeated measurements."""


class Interval(NamedTuple):
    low: float
    high: float


NOTHING_KNOWN = Interval(0.0, math.inf)
"""Interval of a ratio that was measured too few times."""


def over_jobs(ratios: Sequence[float], looks: int = 1, usual: float | None = None, least: float = 0.0) -> Interval:
    """Return the interval of ratios, one a job, by Student's t of their logarithms; of one job nothing is known.

    looks: number of times that an interval may be asked for, each time of more jobs, until it decides; they share the
    chance to be wrong (Bonferroni). usual: known standard deviation of those logarithms, used until three jobs show
    their own, or two that differ by more than it explains. least: the one that they have at least, such as the error of
    each, however well a few jobs happen to agree. Raises ValueError for a ratio that isn't positive.
    """
    logs = [math.log(ratio) for ratio in ratios]
    confidence = _confidence(looks)
    normal = NormalDist().inv_cdf((1 + confidence) / 2)
    by_usual = normal * (usual or 0.0)
    if usual is not None and 0 < len(logs) < 3 and max(logs) - min(logs) <= math.sqrt(2) * by_usual:
        reach = by_usual
    elif len(logs) < 2:
        return NOTHING_KNOWN
    else:
        reach = student(len(logs) - 1, confidence) * stdev(logs)
    reach = max(reach, normal * least) / math.sqrt(len(logs))
    return Interval(math.exp(mean(logs) - reach), math.exp(mean(logs) + reach))


def over_rounds(ratios: Sequence[float], looks: int = 1) -> Interval:
    """Return the interval of the median of ratios, one a round, by their order, whatever their distribution.

    Of fewer than six rounds nothing is known: the range of five holds the median with confidence
    1 - 2 * 0.5**5 = 0.94. looks: as of over_jobs.
    """
    ordered = sorted(ratios)
    most = 1 - _confidence(looks)
    tail = 0.0
    kept = NOTHING_KNOWN
    for left_out in range(len(ordered) + 1):
        tail += math.comb(len(ordered), left_out) * 0.5 ** len(ordered)
        if 2 * tail > most:
            break
        kept = Interval(ordered[left_out], ordered[-1 - left_out])
    return kept


def _confidence(looks: int) -> float:
    return 1 - (1 - CONFIDENCE) / looks


@cache
def student(degrees_of_freedom: int, confidence: float) -> float:
    """Return the t that |t| of Student's distribution exceeds with chance 1 - confidence, without SciPy, which the
    machines of ci/gpu needn't have.
    """
    low, high = 0.0, math.pi / 2  # of the angle whose tangent is t / sqrt(degrees of freedom)
    while high - low > 1e-14:
        angle = (low + high) / 2
        low, high = (angle, high) if _chance(degrees_of_freedom, angle) < confidence else (low, angle)
    return math.sqrt(degrees_of_freedom) * math.tan(low)


def _chance(degrees_of_freedom: int, angle: float) -> float:
    """Return the chance that |t| is smaller (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4)."""
    sine, cosine, odd = math.sin(angle), math.cos(angle), degrees_of_freedom % 2
    total, term = 0.0, cosine if odd else 1.0
    for power in range(odd, degrees_of_freedom - 1, 2):
        total += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def at_most(interval: Interval, limit: float) -> Outcome:
    """Pass if the whole interval is at or below the limit, fail if all of it is above; NaN is undecided."""
    return "pass" if interval.high <= limit else "fail" if interval.low > limit else "undecided"


def at_least(interval: Interval, limit: float) -> Outcome:
    """Pass if the whole interval is at or above the limit, fail if all of it is below; NaN is undecided."""
    return "pass" if interval.low >= limit else "fail" if interval.high < limit else "undecided"


def on_one_side(interval: Interval, limit: float) -> Outcome:
    """Pass if the whole interval is below the limit, fail if all of it is above; NaN is undecided."""
    below, above = at_most(interval, limit), at_least(interval, limit)
    if below == above:
        return "undecided"
    return "pass" if below == "pass" else "fail"


def within(interval: Interval, low: float, high: float) -> Outcome:
    """Pass if the whole interval lies between two limits, fail if none of it does; NaN is undecided."""
    return all_of(at_least(interval, low), at_most(interval, high))


def all_of(*outcomes: Outcome) -> Outcome:
    """Judge several gates together: fail if one fails, else undecided if one is, else pass; undecided of none."""
    if "fail" in outcomes:
        return "fail"
    return "pass" if outcomes and "undecided" not in outcomes else "undecided"
