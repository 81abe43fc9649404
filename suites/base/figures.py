"""Figures are what a test measures, and what a run of a published series has to reach."""

from collections.abc import Mapping
from typing import Any

from engine.published import Number, select
from engine.result import gate, metrics
from engine.result.gate import NOTHING_KNOWN, Interval, over_rounds

Figures = dict[str, tuple[float | None, str]]
"""A figure has a name, a value, which is None if it isn't known, and a unit."""


def percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def speed_up_figures(name: str, ratio: dict[str, Any]) -> Figures:
    """Say how many times as fast the first side is, under that name, and from _low to _high."""
    low, high = ratio["low"], ratio["high"]
    return {
        name: (metrics.speed_up(1.0, ratio["ratio"]), "x"),
        f"{name}_low": (None if high is None else metrics.speed_up(1.0, high), "x"),
        f"{name}_high": (None if low is None else metrics.speed_up(1.0, low), "x"),
    }


def counted_times_s(record: Mapping[str, Any]) -> list[float]:
    """Return the seconds of the steps that count, in a result's record."""
    return [float(one["time_s"]) for one in record["iterations"] if not (one["warmup"] or one.get("profiled"))]


def target(system: str, series: str, ranks: int) -> Number | None:
    """Find the published sustained flop/s of a job, a printed one before one of a picture; None where there is none."""
    rates = select(paper=series, study="weak_scaling", metric="hardware_flops_per_s", devices=ranks)
    of_system = [rate for rate in rates if rate.system.lower() == system]
    return min(of_system, key=lambda rate: rate.origin == "picture", default=None)


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
