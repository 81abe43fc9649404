"""Slowdowns that come and go: nights that were as slow as those of an episode that is over.

From its second or third time on such a slowdown raises no alarm, as it is a habit then (detector.py). So further runs
of it are looked for in the nights themselves.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from reports.nights import noise
from reports.nights.detector import Detector
from reports.nights.levels import Slowdown
from systems.references import LEAST

MOST_NOISE = 0.2
"""Most of a slowdown by which nights may vary, so that each tells whether it was as slow."""
AROUND = 3
"""Nights that tell it of the one in their middle."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """Nights in which figures were slower, as often as they were."""

    nights: frozenset[int] = frozenset()
    runs: int = 0
    """Number of times that they got slower."""
    of: int = 0
    """Number of nights that are remembered."""


def recurrence_of(detector: Detector, slowdowns: Iterable[Slowdown]) -> Recurrence:
    """Find the nights in which the figures of these slowdowns, which are over, were nearer to them than to usual."""
    parts = defaultdict[int, list[float]](list)
    for slowdown in slowdowns:
        if math.expm1(slowdown.size) < LEAST:
            continue
        row = detector.rows[slowdown.figure]
        nights = row.as_measured()
        above = (nights - np.median(nights)) / slowdown.size
        for night, part in zip(row.nights[-len(above) :], above, strict=True):
            parts[night].append(float(part))
    numbers = np.array(sorted(parts))
    part = np.array([[np.mean(parts[night]) for night in numbers]])
    if len(numbers) < AROUND or noise.scale(part)[0] > MOST_NOISE:
        return Recurrence(of=len(numbers))
    slow = noise.running_median(part, AROUND)[0] > 0.5
    runs = int(np.count_nonzero(np.diff(slow.astype(int), prepend=0) > 0))
    return Recurrence(frozenset(numbers[slow].tolist()), runs, len(numbers))
