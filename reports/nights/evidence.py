"""A figure's nights alone tell how sure one can be that it got worse, whatever the figure is.

A night without any change has its expected level, which may drift, and noise of the scale that the nights before it
had, with one job in twenty that is off for a reason of its own. Noise is normal at least, and at least as wild as those
nights were: what s of n of them have shown comes again with a chance of (s + 1/2) / (n + 1), and if it does, that night
counts for the next one (the prediction by Jeffreys' prior). So one bad job proves nothing, however bad, and one bad
night little: that the next ones are bad as well does.

Evidence of a change that began w nights ago is that k of these w nights, more than half of them, are above a level.
The chance of that without a change is at most

    C(w, k) * mean of product over these k nights of max(tail of the level + chance that its jobs are all off, seen)

where seen is the chance by what nights have shown, and the mean is over what level and scale may really be, which are
known from so many nights only. The alarm's limit follows from how many figures a system has and how many false alarms
it may have a year. That every night has several w and k to choose from is not counted: simulate_nights.py of the tests
shows what comes of all this.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, overload

import numpy as np
import numpy.typing as npt
from scipy.special import chdtri, comb, ndtr, stdtr, stdtrit

from systems.references import LEAST, Reference

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

OFF = 0.05
"""This part of all jobs is off for a reason of its own."""
FALSE_ALARMS_A_YEAR = 0.5
"""All figures of a system together may raise so many."""
NIGHTS_A_YEAR = 365
LOOK_BACK = 12
"""A change is found if it began so many nights ago at most."""
BASELINE = 90
FEWEST_NIGHTS = 20
"""At most and at least so many nights before one tell what is usual."""
NIGHTS_THAT_DIFFER = 5
"""Fewer nights don't tell by how much they differ."""
SCALE_OF_MAD = 1.4826
"""A normal distribution's standard deviation is so many times its median absolute deviation."""
EFFICIENCY_OF_MAD = 0.37
"""A scale from the MAD of n values is as uncertain as a standard deviation of so many times n (normal values)."""
VARIANCE_OF_MEDIAN = math.pi / 2
"""A median of n values has so many times the variance of their mean, for large n (normal values)."""
LEAST_SCALE = 1e-3
"""A figure that never varies still may by so much."""
DRIFT, MOST_DRIFT = 0.0003, 0.0005
"""A level drifts by so much a night: usually about 1 % a month, either way, and at most 1.5 %; what goes faster is no
drift."""
LEAST_EFFECT = math.log1p(LEAST)
WILD = 2.0
"""A night that is more scales from the line counts for it as if it were so many (Huber's)."""
SUSPICIOUS = 1.645
"""One night in twenty is so many scales above the level."""
LEAST_FREEDOM = 2.0
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_EDGES = np.array([1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 1.0])
"""These are quantiles of what a scale may be, close together where it is far larger than it seemed."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A night's figure is expected to have this level, as the natural logarithm by its reference, upwards worse.

    scale is that of one night's noise, with so many degrees of freedom, and error says how uncertain the level is.
    of_jobs is the share of the noise's variance in which jobs of one night differ, which more of them take away. That
    many nights tell all this; seen and least_seen are by how much each of them and its best job were above the level,
    where that is known.
    """

    level: float
    scale: float
    error: float
    freedom: float
    nights: int
    of_jobs: float = 0.0
    seen: Floats = field(default_factory=lambda: np.empty(0))
    least_seen: Floats = field(default_factory=lambda: np.empty(0))

    def cases(self) -> tuple[Floats, Floats, Floats]:
        """Return by how much the level may really be higher, what the scale may be, and how likely that is."""
        likely = np.diff(_EDGES)
        scales = self.scale * np.sqrt(self.freedom / chdtri(self.freedom, 1 - (_EDGES[:-1] + _EDGES[1:]) / 2))
        shifts = np.repeat(self.error * _NODES, len(likely))
        weights = np.outer(_WEIGHTS / _WEIGHTS.sum(), likely).ravel()
        return shifts, np.tile(scales, len(_NODES)), weights


def from_reference(known: Reference) -> Expected:
    """A reference alone is what is known. Where it doesn't say how jobs of a night differ, or is of too few nights,
    nights are all that differs.
    """
    scale = max(SCALE_OF_MAD * known.mad / known.median, LEAST_SCALE)
    within = known.within if known.within and known.nights >= NIGHTS_THAT_DIFFER else 0.0
    of_jobs = min(1.0, (within / known.mad) ** 2) if known.mad else 0.0
    count = 1 / ((1 - of_jobs) / known.nights + of_jobs / known.jobs)
    error = scale * math.sqrt(VARIANCE_OF_MEDIAN / count)
    return Expected(0.0, scale, error, max(LEAST_FREEDOM, EFFICIENCY_OF_MAD * count), known.nights, of_jobs)


def from_nights(before: Floats, ahead: float, least: Floats | None = None) -> Expected:
    """At least FEWEST_NIGHTS nights, oldest first, are what is known. The night that is expected comes so many nights
    after the last of them; least has the best job of each, where nights have several.

    A drift is taken out by a line of least squares, for which a wild night counts as far as WILD scales only, and which
    is believed as far as the noise lets it, against what drifts usually are (the mean of both, by their variances).
    """
    values = before[-BASELINE:]
    count = len(values)
    middle = median(values)
    rough = max(SCALE_OF_MAD * median(np.abs(values - middle)), LEAST_SCALE)
    reach = WILD * rough
    tame = np.minimum(np.maximum(values, middle - reach), middle + reach)
    place = np.arange(count) - (count - 1) / 2
    spread = float(place @ place)
    believed = DRIFT**2 / (DRIFT**2 + rough**2 / spread)
    slope = max(-MOST_DRIFT, min(MOST_DRIFT, believed * float(place @ tame) / spread))
    flat = values - slope * place
    level = median(flat)
    scale = max(SCALE_OF_MAD * median(np.abs(flat - level)), LEAST_SCALE)
    further = (count - 1) / 2 + ahead
    of_slope = DRIFT * math.sqrt(1 - believed)
    error = math.hypot(scale * math.sqrt(VARIANCE_OF_MEDIAN / count), of_slope * further)
    seen = flat - level
    least_seen = seen if least is None else least[-BASELINE:] - slope * place - level
    freedom = EFFICIENCY_OF_MAD * count
    return Expected(level + slope * further, scale, error, freedom, count, seen=seen, least_seen=least_seen)


def median(values: Floats) -> float:
    """This is the same as numpy's, which takes ten times as long for so few."""
    ordered, count = np.sort(values), len(values)
    return float(ordered[(count - 1) // 2] + ordered[count // 2]) / 2


@dataclass(frozen=True, slots=True)
class Evidence:
    """A figure got worse so many nights ago, by this median effect; chance is that of as much without a change."""

    chance: float
    nights: int
    effect: float


@dataclass(frozen=True, slots=True)
class Agreed:
    """Several nights are so far above their expected level at least, as so many of their jobs agree; off is the chance
    of each night that these jobs are all off for reasons of their own.
    """

    above: Floats
    off: Floats


@overload
def majority(count: int) -> int: ...
@overload
def majority(count: Integers) -> Integers: ...
def majority(count: int | Integers) -> int | Integers:
    """Return the fewest of so many nights, or jobs of a night, that are more than half of them."""
    return count // 2 + 1


def agreed(nights: Sequence[Sequence[float]]) -> tuple[Agreed, Agreed]:
    jobs = np.array([len(night) for night in nights])
    more = majority(jobs)
    every = Agreed(np.array([min(night) for night in nights]), OFF ** jobs.astype(float))
    most = np.array([sorted(night)[-count] for night, count in zip(nights, more, strict=True)])
    return every, Agreed(most, comb(jobs, more) * OFF ** more.astype(float))


def strongest(nights: Sequence[Sequence[float]], usual: Expected) -> Evidence:
    """Return the strongest evidence of a change that these nights show, LOOK_BACK at most, oldest first, the last being
    tonight. A night is by how much each of its jobs is above the reference.
    """
    best = Evidence(1.0, 0, 0.0)
    middle = np.array([median(np.array(night)) for night in nights]) - usual.level
    for count in range(1, len(nights) + 1):
        effect = median(middle[-count:])
        if effect >= LEAST_EFFECT:
            every, most = agreed(nights[-count:])
            chance = min(_chance(every, usual, usual.least_seen), _chance(most, usual, usual.seen))
            if chance < best.chance:
                best = Evidence(chance, count, effect)
    return best


def _chance(nights: Agreed, usual: Expected, seen: Floats) -> float:
    shifts, scales, weights = usual.cases()
    count = len(nights.above)
    order = np.argsort(-nights.above, kind="stable")
    least = 1.0
    for above in range(majority(count), count + 1):
        level = float(nights.above[order[above - 1]]) - usual.level
        if level <= 0:
            break
        rare = (np.count_nonzero(seen >= level) + 0.5 + np.arange(above)) / (usual.nights + 1 + np.arange(above))
        each = np.maximum(ndtr((shifts - level) / scales)[:, None] + nights.off[order[:above]], rare)
        least = min(least, math.comb(count, above) * float(weights @ np.minimum(each, 1.0).prod(1)))
    return least


def looks_worse(above_reference: float, usual: Expected, so_before: bool = False) -> bool:
    """Say whether a night is worth another job: after one that looked worse already it is sooner."""
    above = above_reference - usual.level
    return above >= LEAST_EFFECT and (so_before or above > SUSPICIOUS * math.hypot(usual.scale, usual.error))


def _error(usual: Expected, jobs: int) -> float:
    by_jobs = min(1.0, (VARIANCE_OF_MEDIAN if jobs > 2 else 1.0) / jobs)
    return math.hypot(usual.scale * math.sqrt(1 - usual.of_jobs * (1 - by_jobs)), usual.error)


def interval(usual: Expected, jobs: int) -> float:
    """Return half the width of the interval of confidence 0.95 of a night's median of so many jobs."""
    return float(stdtrit(usual.freedom, 0.975)) * _error(usual, jobs)


def visible(usual: Expected, jobs: int, p: float) -> float:
    """Return the change that so many jobs show in four nights of five, where p (two-sided) has to be so small."""
    return float(stdtrit(usual.freedom, 1 - p / 2) + stdtrit(usual.freedom, 0.8)) * _error(usual, jobs)


def two_sided(usual: Expected, jobs: int, effect: float) -> float:
    """Return the chance of a night's median at least so far from the level."""
    return float(2 * stdtr(usual.freedom, -abs(effect - usual.level) / _error(usual, jobs)))
