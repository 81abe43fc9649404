"""Shape of a slowdown: a step, or a loss that creeps, told as a slope."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy.stats import theilslopes

from engine.result.gate import CONFIDENCE
from reports.nights.noise import Floats

Kind: TypeAlias = Literal["step", "creep"]
KINDS: tuple[Kind, ...] = ("step", "creep")
FEWEST = 5
"""Fewest nights of a slope, and before it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of the last nights."""

    kind: Kind
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
    """
    counts = _counts(nights, most)
    if not counts:
        return Shape("step", most)
    _, kind, count = min((_square(nights, _form(nights, each, kind)), kind, each) for each in counts for kind in KINDS)
    return Shape("step", count) if kind == "step" else find_slope(nights[-count:])


def find_slope(nights: Floats) -> Shape:
    """Return the slope of nights: the median of those between any two (Theil and Sen).

    Its interval, which is of independent nights, is widened by the autocorrelation of what is left.
    """
    count = len(nights)
    slope, level, low, high = theilslopes(nights, np.arange(count), CONFIDENCE)
    left = nights - level - slope * np.arange(count)
    left -= left.mean()
    rho = max(0.0, float(left[1:] @ left[:-1]) / max(float(left @ left), 1e-12))
    wider = math.sqrt((1 + rho) / (1 - min(rho, 0.95)))
    return Shape("creep", count, slope, slope - wider * (slope - low), slope + wider * (high - slope))


def creeps(nights: Floats, first: int, second: int) -> bool:
    """Return whether a slope explains nights better than two steps do, so many nights before the end, by Schwarz's
    criterion: these have two numbers more, of a level and of a beginning.
    """
    if first >= len(nights):
        return False
    steps = sum(float(((part - part.mean()) ** 2).sum()) for part in np.split(nights, [-first, -second]))
    most = steps * len(nights) ** (2 / len(nights))
    return any(_square(nights, _form(nights, each, "creep")) <= most for each in _counts(nights, 2 * first))


def _counts(nights: Floats, most: int) -> range:
    return range(FEWEST, min(most, len(nights) - FEWEST) + 1)


def _form(nights: Floats, count: int, kind: Kind) -> Floats:
    """Return what begins with the last nights: 1 in each, or one more in each."""
    form: Floats = np.clip(np.arange(len(nights)) - len(nights) + count + 1.0, 0, 1 if kind == "step" else count)
    return form


def _square(nights: Floats, form: Floats) -> float:
    """Return the sum of squares that least squares leave of a level and a form."""
    centred = form - form.mean()
    own = nights - nights.mean()
    return float(own @ own - (own @ centred) ** 2 / (centred @ centred))
