"""Does a run reach the published rate that targets.yaml has for it, by the whole interval over its steps?

Steps of one job speak of that job alone, as one published rate does. With fewer than six it is undecided.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine import yaml_text
from engine.result import gate
from engine.result.interval import NOTHING_KNOWN, Interval, over_rounds
from suites.base.steps import counted_times_s

REACHED = 0.8
"""This part of a published rate has to be reached."""
FILE = Path(__file__).parents[1] / "targets.yaml"


def published_rate(system: str, series: str, ranks: int) -> float | None:
    """Return the published sustained flop/s of a job; None where nothing is published."""
    rate = yaml_text.parse(FILE.read_text()).get(system, {}).get(series, {}).get(ranks)
    return None if rate is None else float(rate)


def rate_over_steps(record: Mapping[str, Any]) -> Interval:
    """Return the interval of a job's hardware flop/s over its counted steps; it begins at 0 where they are too few."""
    summary = record["summary"]
    flops = summary["hardware_flops_per_s"] * summary["time_per_iteration_s"]
    times = over_rounds(counted_times_s(record))
    if times == NOTHING_KNOWN:
        return NOTHING_KNOWN
    return Interval(flops / times.high, flops / times.low)


def unreached(record: Mapping[str, Any], published: float) -> str | None:
    """Say why a result doesn't reach a published rate, or why that is undecided; None if it does."""
    found, least = rate_over_steps(record), REACHED * published
    outcome = gate.at_least(found, least)
    if outcome == "pass":
        return None
    verdict = "the target is missed" if outcome == "fail" else "undecided whether the target is reached"
    between = (
        "too few steps to tell (six or more do)"
        if found == NOTHING_KNOWN
        else f"{found.low:.4g} to {found.high:.4g} flop/s over its steps"
    )
    return f"{verdict}: {between}, at least {least:.4g} is wanted, {REACHED:.0%} of the published {published:.4g}"
