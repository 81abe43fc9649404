"""Figures are what a test measures; a speed-up has the ends of its interval, which few rounds of one job don't give."""

from typing import Any

from engine.result import metrics

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
