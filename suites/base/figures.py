"""Figures are what a test measures, and what a run of a published series has to reach."""

from collections.abc import Mapping, Sequence
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


TOLERANCES = {"fp64": 1e-12, "fp32": 1e-5}
"""The largest relative difference of two losses of the same step, by number format.

These are forty times as far as rounding took 100 steps, or more: 6e-15 in fp64 on 2x2x2x2; 2.5e-7 in fp32, the most of
twelve layers of 64 and of 128 features with micro-batches of one and on two ranks of x, of 64 on two of y and z too,
and in float64. A weight decay that is 10 % off moved these by 1.5e-5. The 125M network itself has not been measured.
"""


def apart(parallel: Sequence[float], serial: Sequence[float], precision: str) -> str | None:
    """Say how the curves differ by more than rounding; None if they don't."""
    difference, step = metrics.curve_difference(parallel, serial)
    if difference <= TOLERANCES[precision]:
        return None
    return f"differ by {difference:.1e} at step {step + 1}, but {TOLERANCES[precision]:g} is allowed in {precision}"


COURSE = 3e-3
"""The largest relative difference of two means of metrics.WINDOW steps.

This is ten times as far as rounding in bf16 took a GPT of two layers in 2,000 steps: its means by 2.8e-4 between
splits of weights and of data, by 1.2e-4 between stages and data, where steps differed by 3e-3. A weight decay of 0.1
instead of 0.01 moved its means by 7e-3. The papers' networks have not been measured.
"""


def astray(losses: Sequence[float], references: Sequence[float]) -> str | None:
    """Say how one long curve leaves the course of another; None if it doesn't."""
    difference, window = metrics.curve_difference(*map(metrics.window_means, (losses, references)))
    if difference <= COURSE:
        return None
    return (
        f"differ by {difference:.1e} in the mean of about {metrics.WINDOW} steps from step "
        f"{window * metrics.WINDOW + 1} on, but {COURSE:g} is allowed"
    )
