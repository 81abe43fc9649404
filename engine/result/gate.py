"""A gate says of an interval whether it keeps a limit, breaks it, or leaves that open. No torch.

The three outcomes are those of every check in the tree. An undecided one is reported as such wherever somebody reads a
verdict, and never counts as passed: it takes longer or repeated measurements.
"""

from typing import Literal

from engine.result.interval import Interval

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
