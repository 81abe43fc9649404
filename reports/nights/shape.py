"""Shape of a slowdown: a step, or a loss that creeps, told as a slope."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import theilslopes

from engine.result.gate import CONFIDENCE
from reports.nights.noise import Floats

FEWEST = 5
"""Fewest nights of a slope, and before it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of the last nights."""

    kind: Literal["step", "creep"]
    nights: int
    """Last nights, since it began."""
    slope: float = 0.0
    """Change a night."""
    low: float = 0.0
    high: float = 0.0
    """Ends of the slope's interval of confidence 0.95."""


def find_shape(nights: Floats, most: int) -> Shape:
    """Compare a step and a slope that begin with one of the `most` last nights, each behind a constant level, by their
    squares.

    The slope is the median of those between any two nights (Theil and Sen); its interval, which is of independent
    nights, is widened by the autocorrelation of what is left.
    """
    counts = range(FEWEST, min(most, len(nights) - FEWEST) + 1)
    _, kind, count = min(
        (_square(nights, np.minimum(np.arange(len(nights)) - len(nights) + each + 1, bound)), kind, each)
        for each in counts
        for kind, bound in (("step", 1), ("creep", each))
    )
    if kind == "step":
        return Shape("step", count)
    last = nights[-count:]
    slope, level, low, high = theilslopes(last, np.arange(count), CONFIDENCE)
    left = last - level - slope * np.arange(count)
    left -= left.mean()
    rho = max(0.0, float(left[1:] @ left[:-1]) / max(float(left @ left), 1e-12))
    wider = math.sqrt((1 + rho) / (1 - min(rho, 0.95)))
    return Shape("creep", count, slope, slope - wider * (slope - low), slope + wider * (high - slope))


def _square(nights: Floats, form: Floats) -> float:
    """Return the sum of squares that least squares leave of a level and a form, which is 0 before it begins."""
    centred = np.maximum(form, 0) - np.maximum(form, 0).mean()
    own = nights - nights.mean()
    return float(own @ own - (own @ centred) ** 2 / (centred @ centred))
