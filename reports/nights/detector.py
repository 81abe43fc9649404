"""One test says whether a figure's level has changed: by the step of its last nights, in generalised least squares.

A night is the median of its jobs, as the logarithm of how bad the figure is, less what the canary explains: a frozen
program that runs in the same jobs and knows nothing of the engine, so that both share the machine's mood. Night t is

    level + drift t + step (t >= since) + noise of t

The level may be anything, and the drift is a normal one of DRIFT a night. Noise is normal, with a scale and a
correlation of one night with the next that the nights before have shown, the correlation by its upper end: nights that
resemble one another tell as little as the fewer ones that they are worth, of which Student's t has its freedom. A night
farther from the others than REACH times what is new in a night counts as if it were so far, and a step is that of three
nights at least: one or two prove nothing, however bad.

The step of the last w nights is their change for the worse or for the better if chance gives as much in at most the
limit's share of nights, over all w that are tried, and if it is LEAST or more. From then on nights before it are moved
by it, so that all nights tell of the present level.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from statistics import median
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import stdtr

from systems.references import LEAST

Floats: TypeAlias = npt.NDArray[np.float64]

FALSE_ALARMS_A_YEAR = 0.2
"""All figures of a system together may raise so many."""
NIGHTS_A_YEAR = 365
FEWEST, BASELINE = 20, 90
"""At least and at most so many nights before a change tell what is usual."""
WINDOWS = (3, 5, 8, 13, 21, 34)
"""A change is looked for in so many nights, a quarter of all that are known at most; with which of them it began is
found out then.
"""
REACH = 5.0
DRIFT = 0.0004
"""A level drifts by so much a night, either way: about 1 % a month."""
SCALE_OF_MAD = 1.4826
"""A normal distribution's standard deviation is so many times its median absolute deviation."""
LEAST_SCALE = 1e-3
"""A figure that never varies still may by so much."""
SURE = 1.96
"""A correlation from night to night is taken so many standard errors above what was found."""
MOST_ALIKE = 0.95
WORTH_A_JOB = 1.645
"""A night so many scales above the others is worth another job: one in twenty is."""


def limit_of(figures: float) -> float:
    """Give the share of a figure's nights in which chance alone may show a change, if a system has so many figures."""
    return FALSE_ALARMS_A_YEAR / NIGHTS_A_YEAR / max(1.0, figures)


@dataclass(frozen=True, slots=True)
class Noise:
    """A figure's nights vary so: about a level at the last of them, with a drift a night, a scale, and a correlation of
    each night with the next. reach: how far from the line a night may count.
    """

    level: float
    drift: float
    scale: float
    alike: float
    reach: float
    freedom: float


@dataclass(frozen=True, slots=True)
class Step:
    """A figure's level has changed by so much, as a logarithm, upwards worse, so many nights ago. chance: of a step at
    least as sure in one night without any change.
    """

    size: float
    nights: int
    chance: float


def noise_of(before: Floats) -> Noise:
    """Estimate how nights vary from those before the ones that are judged, oldest first."""
    count = len(before)
    place = np.arange(count) - (count - 1.0)
    tame = _drawn_in(before, float(np.median(before)), SCALE_OF_MAD * _mad(before) * REACH)
    spread = place - place.mean()
    rough = max(SCALE_OF_MAD * _mad(np.diff(before)) / math.sqrt(2), LEAST_SCALE)
    drift = float(spread @ tame) / (float(spread @ spread) + (rough / DRIFT) ** 2)
    flat = before - drift * place
    level = float(np.median(flat))
    reach = REACH * max(SCALE_OF_MAD * _mad(flat), LEAST_SCALE)
    left = _drawn_in(flat, level, reach)
    left = left - left.mean()
    square = float(left @ left)
    found = float(left[1:] @ left[:-1]) / square if square > 0 else 0.0
    likely = min(max(found + (1 + 3 * found) / count, 0.0), MOST_ALIKE)
    alike = min(likely + SURE * math.sqrt((1 - likely**2) / count), MOST_ALIKE)
    worth = max(count * (1 - alike) / (1 + alike), 3.0)
    scale = max(math.sqrt(square / count * worth / (worth - 1)), LEAST_SCALE)
    return Noise(level, drift, scale, alike, reach * math.sqrt(1 - alike**2), worth - 2)


def step(values: Floats, limit: float) -> Step | None:
    """Find the surest step of the last nights, oldest first, if chance gives one in at most that share of nights."""
    windows = [window for window in WINDOWS if window <= min(len(values) - FEWEST, len(values) // 4)]
    if not windows:
        return None
    judged = values[-(BASELINE + windows[-1]) :]
    noise = noise_of(judged[: -windows[-1]])
    line = noise.level + noise.drift * np.arange(windows[-1] + 1 - len(judged), windows[-1] + 1)
    flat = judged - line
    inverse, certainty = _inverse(len(judged), math.ceil(noise.alike * 20) / 20, _ratio(noise.scale))
    tame = _drawn_in(flat, 0.0, noise.reach)
    along = np.cumsum((inverse @ tame)[::-1])
    by_scale = along / np.sqrt(certainty) / noise.scale
    surest = max(windows, key=lambda window: abs(by_scale[window - 1]))
    chance = len(windows) * float(stdtr(noise.freedom, -abs(by_scale[surest - 1])))
    if chance > limit:
        return None
    way = np.sign(by_scale[surest - 1])
    since = way * np.cumsum(tame[::-1]) / np.sqrt(np.arange(1, len(tame) + 1))
    nights = WINDOWS[0] + int(np.argmax(since[WINDOWS[0] - 1 : windows[-1]]))
    size = float(np.median(flat[-nights:]))
    return Step(size, nights, chance) if way * size > 0 and abs(math.expm1(size)) >= LEAST else None


@lru_cache(maxsize=1024)
def _inverse(count: int, alike: float, ratio: float) -> tuple[Floats, Floats]:
    """Invert the covariance of so many nights, in squares of their noise's scale; the second array has the inverse of
    the variance of a step of the last w of them, at w - 1.
    """
    place = np.arange(count, dtype=np.float64)
    covariance = alike ** np.abs(place[:, None] - place) + 1e6
    covariance += ratio**2 * np.outer(place - place.mean(), place - place.mean())
    inverse: Floats = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
    certainty: Floats = np.cumsum(np.cumsum(inverse[::-1, ::-1], axis=0), axis=1).diagonal().copy()
    return inverse, certainty


def _ratio(scale: float) -> float:
    """Give a night's drift by the scale, rounded up to a power of the root of two, so that inverses are used again."""
    return float(2 ** (math.ceil(2 * math.log2(DRIFT / scale)) / 2))


def _mad(values: Floats) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def _drawn_in(values: Floats, middle: float, reach: float) -> Floats:
    return np.clip(values, middle - reach, middle + reach)


def explained(values: Floats, canary: Floats) -> Floats:
    """Say how much of each night the canary explains. Both are logarithms; where the canary is NaN it explains nothing.

    Its share is that of least squares between the differences from night to night, in which no change of level counts
    more than once, less what chance alone would give (James and Stein).
    """
    moves, mood = np.diff(values), np.diff(canary)
    known = np.isfinite(mood)
    found = np.zeros(len(values))
    if np.count_nonzero(known) < FEWEST:
        return found
    y, c = (_drawn_in(one, 0.0, REACH * SCALE_OF_MAD * _mad(one)) for one in (moves[known], mood[known]))
    square = float(c @ c)
    if not square:
        return found
    share = float(c @ y) / square
    left = y - share * c
    error = float(left @ left) / (len(y) - 1) / square
    share = min(max(share, 0.0), 1.0) * max(0.0, 1 - error / share**2) if share else 0.0
    here = np.isfinite(canary)
    found[here] = share * (canary[here] - np.median(canary[here]))
    return found


@dataclass(slots=True)
class Follower:
    """It follows a figure from night to night. limit: the share of nights in which chance alone may show a change.

    worse: the steps for the worse that later ones for the better haven't undone, each with the position of its first
    night, the newest last.
    """

    limit: float
    worse: list[tuple[int, Step]] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    _canary: list[float] = field(default_factory=list)

    def add(self, jobs: Sequence[float], canary: Sequence[float] = ()) -> Step | None:
        """Add a night, by how bad each of its jobs is as a logarithm; returns the change that it shows."""
        self._values.append(median(jobs))
        self._canary.append(median(canary) if canary else math.nan)
        found = step(self._clean(), self.limit)
        if found:
            since = len(self._values) - found.nights
            self._values[:since] = [value + found.size for value in self._values[:since]]
            self._count(since, found)
        return found

    def looks_worse(self, jobs: Sequence[float]) -> bool:
        """Say whether a night of these jobs is worth another one."""
        values = np.array(self._values[-BASELINE:])
        if len(values) < FEWEST:
            return False
        noise = noise_of(values)
        above = median(jobs) - noise.level
        return math.expm1(above) >= LEAST and above > WORTH_A_JOB * noise.scale

    def usual(self) -> Noise | None:
        """Say what is expected of the next night; None where too few tell."""
        values = self._clean()[-BASELINE:]
        return noise_of(values) if len(values) >= FEWEST else None

    def _clean(self) -> Floats:
        most = BASELINE + WINDOWS[-1]
        values = np.array(self._values[-most:])
        return values - explained(values, np.array(self._canary[-most:]))

    def _count(self, since: int, found: Step) -> None:
        """Remember what got worse, and forget what a gain of half its size or more undoes."""
        if found.size > 0:
            self.worse.append((since, found))
            return
        gained = -found.size
        while self.worse and gained >= self.worse[-1][1].size / 2:
            gained -= self.worse.pop()[1].size
