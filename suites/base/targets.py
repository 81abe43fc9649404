"""Does a run reach the published rate of its point, by the whole interval over its steps?

A target is a published rate of the series (engine/published), of which all but its tolerance has to be reached. Steps
of one job speak of that job alone, as one published rate does. With fewer than six it is undecided.
"""

from collections.abc import Mapping
from typing import Any

from engine.published import Number, select
from engine.result import gate
from engine.result.gate import NOTHING_KNOWN, Interval, over_rounds
from suites.base.steps import counted_times_s


def target(system: str, series: str, ranks: int) -> Number | None:
    """Find the published sustained flop/s of a job; None where nothing is published."""
    rates = select(paper=series, study="weak_scaling", metric="hardware_flops_per_s", devices=ranks)
    return next((rate for rate in rates if rate.system.lower() == system), None)


def rate_over_steps(record: Mapping[str, Any]) -> Interval:
    """Return the interval of a job's hardware flop/s over its counted steps; it begins at 0 where they are too few."""
    summary = record["summary"]
    flops = summary["hardware_flops_per_s"] * summary["time_per_iteration_s"]
    times = over_rounds(counted_times_s(record))
    if times == NOTHING_KNOWN:
        return NOTHING_KNOWN
    return Interval(flops / times.high, flops / times.low)


def unreached(record: Mapping[str, Any], published: Number) -> str | None:
    """Say why a result doesn't reach a published rate, or why that is undecided; None if it does."""
    share = 1 - published.tolerance
    found, least = rate_over_steps(record), share * published.si
    outcome = gate.at_least(found, least)
    if outcome == "pass":
        return None
    verdict = "the target is missed" if outcome == "fail" else "undecided whether the target is reached"
    between = (
        "too few steps to tell (six or more do)"
        if found == NOTHING_KNOWN
        else f"{found.low:.4g} to {found.high:.4g} flop/s over its steps"
    )
    return f"{verdict}: {between}, at least {least:.4g} is wanted, {share:.0%} of the published {published.si:.4g}"
