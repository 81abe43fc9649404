"""One test says whether a figure's level has changed: by the step of its last nights, in generalised least squares.

A night is the median of its jobs, as the logarithm of how bad the figure is, less what the canary explains: a frozen
program that runs in the same jobs and knows nothing of the engine, so that both share the machine's mood. Night t is

    level + drift t + step (t >= since) + noise of t,    noise of t = alike (noise of t - 1) + what is new in t

The level may be anything, and the drift is a normal one of DRIFT a night. What is new is normal, with a scale that the
nights before have shown, and so has Student's t its freedom; alike is the upper end of what they show. A night farther
off than REACH scales, from the level and from the nights around it, counts as if it were so far.

The step of the last w nights is their change for the worse or for the better if chance gives one as sure that way in at
most the limit's share of nights, over all w that are tried, even if the two nights on either side that speak most for
it spoke like the third: one or two prove nothing, however bad. Its size, the median of its nights, has to be LEAST or
more. From then on nights before it are moved by it, so that all nights tell of the present level.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
"""A change is looked for in so many nights, behind FEWEST or more; with which of them it began is found out then."""
AROUND = 5
"""So many nights tell what is usual around one of them, of which two may be off."""
REACH = 4.0
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
    each night with the next. new: the scale of what is new in a night.
    """

    level: float
    drift: float
    scale: float
    alike: float
    new: float
    freedom: float


@dataclass(frozen=True, slots=True)
class Step:
    """A figure's level has changed by so much, as a logarithm, upwards worse, so many nights ago."""

    size: float
    nights: int


def noise_of(before: Floats) -> Noise:
    """Estimate how nights vary from those before the ones that are judged, oldest first, drawn in."""
    count = len(before)
    place = np.arange(count) - (count - 1.0)
    spread, moves = place + (count - 1) / 2, before[1:] - before[:-1]
    rough = max(float(moves @ moves) / 2 / count, LEAST_SCALE**2)
    drift = float(spread @ before) / (float(spread @ spread) + rough / DRIFT**2)
    flat = before - drift * place
    left = flat - flat.mean()
    square = float(left @ left)
    found = float(left[1:] @ left[:-1]) / square if square > 0 else 0.0
    likely = min(max(found + (1 + 3 * found) / count, 0.0), MOST_ALIKE)
    alike = min(likely + SURE * math.sqrt((1 - likely**2) / count), MOST_ALIKE)
    fresh = left[1:] - alike * left[:-1]
    freedom = count - 3
    new = max(math.sqrt(float(fresh @ fresh) / freedom), LEAST_SCALE)
    return Noise(_median(flat), drift, new / math.sqrt(1 - alike**2), alike, new, freedom)


def step(values: Floats, limit: float) -> Step | None:
    """Find the surest step of the last nights, oldest first, if chance gives one in at most that share of nights."""
    windows = [window for window in WINDOWS if window <= len(values) - FEWEST]
    if not windows:
        return None
    most = windows[-1]
    judged = drawn_in(values[-(BASELINE + most) :])
    noise = noise_of(judged[:-most])

    def chance(sure: float) -> float:
        return len(windows) * float(stdtr(noise.freedom, -sure))

    sure = _sure(judged, noise, most)
    surest = max((sure[window - 1] for window in windows), key=abs)
    way = math.copysign(1.0, surest)
    if chance(way * surest) > limit:
        return None
    nights = WINDOWS[0] + int(np.argmax(way * sure[WINDOWS[0] - 1 :]))
    less = way * judged
    less[-nights:] = np.minimum(less[-nights:], np.sort(less[-nights:])[-WINDOWS[0]])
    around = slice(-nights - AROUND, -nights)
    less[around] = np.maximum(less[around], np.sort(less[around])[WINDOWS[0] - 1])
    size = _median(judged[-nights:] - noise.level - noise.drift * np.arange(most - nights + 1, most + 1))
    proven = chance(_sure(less, noise, nights)[-1]) <= limit
    return Step(size, nights) if proven and way * size > 0 and abs(math.expm1(size)) >= LEAST else None


def _sure(nights: Floats, noise: Noise, most: int) -> Floats:
    """Give the step of the last w nights in its standard deviations, at w - 1, for each w up to so many.

    Less alike times the one before, nights are independent; the level and the drift are what least squares then give.
    """
    place = np.arange(len(nights), dtype=np.float64)
    terms = np.stack([nights, np.ones_like(place), place - (len(nights) - 1) / 2])
    new = terms.copy()
    new[:, 1:] -= noise.alike * terms[:, :-1]
    new[:, 0] *= math.sqrt(1 - noise.alike**2)
    along = noise.alike * new[:, : -most - 1 : -1] + (1 - noise.alike) * np.cumsum(new[:, : -most - 1 : -1], axis=1)
    gram = new[1:] @ new.T
    gram[1, 2] += (noise.new / DRIFT) ** 2
    explained = np.linalg.solve(gram[:, 1:], along[1:])
    square = 1 + (1 - noise.alike) ** 2 * np.arange(most) - (along[1:] * explained).sum(axis=0)
    sure: Floats = (along[0] - gram[:, 0] @ explained) / np.sqrt(square) / noise.new
    return sure


def _median(values: Floats) -> float:
    """Return the median of few numbers, which NumPy's own takes several times as long for."""
    ordered = np.sort(values)
    return float(ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2


def _reach(moves: Floats) -> float:
    return max(REACH * SCALE_OF_MAD * _median(np.abs(moves)), LEAST_SCALE)


def drawn_in(values: Floats) -> Floats:
    """Draw in nights that are too far off, where those around one are the AROUND nights with it in their middle, or at
    either end the first or last ones.
    """
    level, reach = _median(values), _reach(values[1:] - values[:-1]) / math.sqrt(2)
    middle = np.minimum(np.maximum(np.arange(len(values)), AROUND // 2), len(values) - 1 - AROUND // 2)
    around = np.sort(values[middle[:, None] + np.arange(AROUND) - AROUND // 2], axis=1)[:, AROUND // 2]
    return np.minimum(np.maximum(values, np.minimum(around, level) - reach), np.maximum(around, level) + reach)


def explained(values: Floats, canary: Floats) -> Floats:
    """Say how much of each night the canary explains. Both are logarithms; where the canary is NaN it is taken to be
    between what it is in the nights around.

    Its share is that of least squares between the differences from night to night, in which no change of level counts
    more than once, less what chance alone would give (James and Stein). Nothing tells its share of a mood farther off
    than they reach: such a one excuses what is off the same way, as far as its share goes, and explains no more.
    """
    known = np.isfinite(canary)
    both = known[1:] & known[:-1]
    if np.count_nonzero(both) < FEWEST:
        return np.zeros(len(values))
    moves = [np.diff(one)[both] for one in (values, canary)]
    y, c = (np.clip(one, -_reach(one), _reach(one)) for one in moves)
    square = float(c @ c)
    share = float(c @ y) / square if square else 0.0
    if share <= 0:
        return np.zeros(len(values))
    left = y - share * c
    error = float(left @ left) / (len(y) - 1) / square
    share = min(share, 1.0) * max(0.0, 1 - error / share**2)
    place = np.arange(len(values))
    mood = np.interp(place, place[known], canary[known])
    mood, own = mood - _median(mood), values - _median(values)
    excused = np.clip(own, np.minimum(share * mood, 0.0), np.maximum(share * mood, 0.0))
    found: Floats = np.where(np.abs(mood) > _reach(moves[1]), excused, share * mood)
    return found


def _last(clean: Floats) -> tuple[Noise, float] | None:
    before = clean[:-1][-BASELINE:]
    return (noise_of(drawn_in(before)), float(clean[-1])) if len(before) >= FEWEST else None


@dataclass(frozen=True, slots=True)
class Alarm:
    """A figure's level got worse with the night of that number, by that size; so much of it is left (logarithms)."""

    since: int
    size: float
    left: float

    @property
    def effect(self) -> float:
        """Say how many times as bad as before the nights since then are, less one."""
        return math.expm1(self.left)


@dataclass(slots=True)
class Follower:
    """It follows a figure from night to night. limit: the share of nights in which chance alone may show a change.

    passed: so many nights. nights: the numbers of those that have the figure, from 0. changes: with these the level has
    changed, by the sum of the steps that begin with one. worse: what later changes for the better haven't undone, the
    newest last.
    """

    limit: float
    passed: int = 0
    nights: list[int] = field(default_factory=list)
    changes: dict[int, float] = field(default_factory=dict)
    worse: list[Alarm] = field(default_factory=list)
    _values: list[float] = field(default_factory=list)
    _canary: list[float] = field(default_factory=list)
    _clean: Floats = field(default_factory=lambda: np.empty(0))

    def add(self, jobs: Sequence[float], canary: Sequence[float] = ()) -> Step | None:
        """Add a night, by how bad each of its jobs is as a logarithm; returns the change that it shows."""
        self._values, self._canary, self._clean = self._with(jobs, canary)
        self.nights.append(self.passed)
        self.passed += 1
        found = step(self._clean, self.limit)
        if found:
            since = len(self._values) - found.nights
            self._values[:since] = [value + found.size for value in self._values[:since]]
            self._count(self.nights[since], found.size)
        return found

    def miss(self) -> int:
        """Let a night without the figure pass; returns how many have been so since the last that had it."""
        self.passed += 1
        return self.passed - 1 - self.nights[-1] if self.nights else 0

    def last(self) -> tuple[Noise, float] | None:
        """Say what was expected of the last night, and how bad it was less what the canary explains; None where too few
        nights before it tell.
        """
        return _last(self._clean)

    def looks_worse(self, jobs: Sequence[float], canary: Sequence[float] = ()) -> bool:
        """Say whether a night of these jobs is worth another one."""
        if (last := _last(self._with(jobs, canary)[-1])) is None:
            return False
        noise, now = last
        above = now - noise.level - noise.drift
        return math.expm1(above) >= LEAST and above > WORTH_A_JOB * noise.scale

    def _with(self, jobs: Sequence[float], canary: Sequence[float]) -> tuple[list[float], list[float], Floats]:
        """Give all nights and one more, their canaries, and those that are looked at, less what these explain."""
        values, moods = [*self._values, median(jobs)], [*self._canary, median(canary) if canary else math.nan]
        seen, of_canary = (np.array(each[-BASELINE - WINDOWS[-1] :]) for each in (values, moods))
        return values, moods, seen - explained(seen, of_canary)

    def _count(self, since: int, size: float) -> None:
        """Remember a change, and forget what got worse where gains of half its size or more undo that."""
        self.changes[since] = self.changes.get(since, 0.0) + size
        if size > 0:
            self.worse.append(Alarm(since, size, size))
        gained = -size
        while self.worse and gained > 0:
            last = self.worse.pop()
            left, gained = last.left - gained, gained - last.left
            if left > last.size / 2:
                self.worse.append(replace(last, left=left))
