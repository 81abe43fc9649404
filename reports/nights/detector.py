"""Detection of a change of level from night to night: the step of the last nights, in generalised least squares.

A night is the median of its jobs, as the logarithm of how bad the figure is, less what the canary explains: a frozen
program that runs in the same jobs and knows nothing of the engine, so that both share the machine's state. Night t is

    level + drift t + step (t >= since) + noise_t,    noise_t = rho noise_(t - 1) + innovation_t

The level may be anything; the drift is normal, with a standard deviation of DRIFT a night. Innovations are normal, with
a scale estimated from the nights before, so that a step over its standard error has Student's t distribution. rho is
the upper end of its interval. A night farther off than WINSOR_LIMIT scales, from the level and from the nights around
it, is winsorised: it counts as if it were so far.

The last w nights are a change for the worse or for the better if chance gives a z that large that way in at most the
limit's share of nights, over all w that are tried, even if the two nights on either side that speak most for it spoke
like the third: one or two prove nothing, however bad. The size of the change, the median of its nights, has to be LEAST
or more. From then on nights before it are moved by it, so that all nights tell of the present level.
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
"""False alarms that all figures of a system together may raise."""
NIGHTS_A_YEAR = 365
FEWEST, BASELINE = 20, 90
"""Fewest and most nights before a change that tell what is usual."""
WINDOWS = (3, 5, 8, 13, 21, 34)
"""Numbers of last nights in which a change is looked for, behind FEWEST or more; its first night is found then."""
AROUND = 5
"""Nights that tell what is usual around one of them, of which two may be off."""
WINSOR_LIMIT = 4.0
"""Scales beyond which a night is winsorised."""
DRIFT = 0.0004
"""Standard deviation of a level's drift a night: about 1 % a month."""
SCALE_OF_MAD = 1.4826
"""Standard deviation of a normal distribution by its median absolute deviation."""
LEAST_SCALE = 1e-3
"""Scale of a figure that never varies."""
RHO_MARGIN = 1.96
"""Standard errors above its estimate at which rho is taken."""
MOST_RHO = 0.95
WORTH_A_JOB = 1.645
"""Scales above the others from which a night is worth another job: one in twenty is."""


def false_alarm_limit(figures: float) -> float:
    """Return the share of a figure's nights in which chance alone may show a change, by a system's judged figures."""
    return FALSE_ALARMS_A_YEAR / NIGHTS_A_YEAR / max(1.0, figures)


@dataclass(frozen=True, slots=True)
class Noise:
    """Estimate of how a figure's nights vary."""

    level: float
    """Level at the last night."""
    drift: float
    """Change of the level a night."""
    scale: float
    """Standard deviation of a night."""
    rho: float
    """Autocorrelation of each night with the next, at the upper end of its interval."""
    innovation_scale: float
    """Standard deviation of what is new in a night."""
    degrees_of_freedom: float


@dataclass(frozen=True, slots=True)
class LevelChange:
    """Change of a figure's level."""

    size: float
    """Logarithm of the factor; positive is worse."""
    nights: int
    """Nights since then, the last one included."""


def estimate_noise(before: Floats) -> Noise:
    """Estimate how nights vary from winsorised ones before those that are judged, oldest first."""
    count = len(before)
    place = np.arange(count) - (count - 1.0)
    spread, moves = place + (count - 1) / 2, before[1:] - before[:-1]
    rough = max(float(moves @ moves) / 2 / count, LEAST_SCALE**2)
    drift = float(spread @ before) / (float(spread @ spread) + rough / DRIFT**2)
    flat = before - drift * place
    residuals = flat - flat.mean()
    square = float(residuals @ residuals)
    raw = float(residuals[1:] @ residuals[:-1]) / square if square > 0 else 0.0
    unbiased = min(max(raw + (1 + 3 * raw) / count, 0.0), MOST_RHO)
    rho = min(unbiased + RHO_MARGIN * math.sqrt((1 - unbiased**2) / count), MOST_RHO)
    innovations = residuals[1:] - rho * residuals[:-1]
    degrees_of_freedom = count - 3
    innovation_scale = max(math.sqrt(float(innovations @ innovations) / degrees_of_freedom), LEAST_SCALE)
    scale = innovation_scale / math.sqrt(1 - rho**2)
    return Noise(_median(flat), drift, scale, rho, innovation_scale, degrees_of_freedom)


def find_step(values: Floats, limit: float) -> LevelChange | None:
    """Find the step with the largest z in the last nights, oldest first, if chance gives it in at most that share."""
    windows = [window for window in WINDOWS if window <= len(values) - FEWEST]
    if not windows:
        return None
    most = windows[-1]
    judged = winsorise(values[-(BASELINE + most) :])
    noise = estimate_noise(judged[:-most])

    def p_value(z: float) -> float:
        """Return the chance of a z that large in one of the windows (Bonferroni)."""
        return len(windows) * float(stdtr(noise.degrees_of_freedom, -z))

    z = _z_scores(judged, noise, most)
    largest = max((z[window - 1] for window in windows), key=abs)
    way = math.copysign(1.0, largest)
    if p_value(way * largest) > limit:
        return None
    nights = WINDOWS[0] + int(np.argmax(way * z[WINDOWS[0] - 1 :]))
    trimmed = way * judged
    trimmed[-nights:] = np.minimum(trimmed[-nights:], np.sort(trimmed[-nights:])[-WINDOWS[0]])
    around = slice(-nights - AROUND, -nights)
    trimmed[around] = np.maximum(trimmed[around], np.sort(trimmed[around])[WINDOWS[0] - 1])
    size = _median(judged[-nights:] - noise.level - noise.drift * np.arange(most - nights + 1, most + 1))
    proven = p_value(_z_scores(trimmed, noise, nights)[-1]) <= limit
    return LevelChange(size, nights) if proven and way * size > 0 and abs(math.expm1(size)) >= LEAST else None


def _z_scores(nights: Floats, noise: Noise, most: int) -> Floats:
    """Return the step of the last w nights over its standard error, at w - 1, for each w up to `most`.

    Generalised least squares: less rho times the one before, nights are independent, and the level and the drift are
    what least squares then give.
    """
    place = np.arange(len(nights), dtype=np.float64)
    terms = np.stack([nights, np.ones_like(place), place - (len(nights) - 1) / 2])
    whitened = terms.copy()
    whitened[:, 1:] -= noise.rho * terms[:, :-1]
    whitened[:, 0] *= math.sqrt(1 - noise.rho**2)
    newest_first = whitened[:, : -most - 1 : -1]
    along = noise.rho * newest_first + (1 - noise.rho) * np.cumsum(newest_first, axis=1)
    gram = whitened[1:] @ whitened.T
    gram[1, 2] += (noise.innovation_scale / DRIFT) ** 2
    fitted = np.linalg.solve(gram[:, 1:], along[1:])
    square = 1 + (1 - noise.rho) ** 2 * np.arange(most) - (along[1:] * fitted).sum(axis=0)
    z: Floats = (along[0] - gram[:, 0] @ fitted) / np.sqrt(square) / noise.innovation_scale
    return z


def _median(values: Floats) -> float:
    """Return the median of few numbers, which NumPy's own takes several times as long for."""
    ordered = np.sort(values)
    return float(ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2


def _winsor_limit(moves: Floats) -> float:
    return max(WINSOR_LIMIT * SCALE_OF_MAD * _median(np.abs(moves)), LEAST_SCALE)


def winsorise(values: Floats) -> Floats:
    """Move nights that are too far off to the limit, from the level and from the AROUND nights with it in their middle
    (at either end the first or last ones).
    """
    level = _median(values)
    limit = _winsor_limit(values[1:] - values[:-1]) / math.sqrt(2)
    middle = np.minimum(np.maximum(np.arange(len(values)), AROUND // 2), len(values) - 1 - AROUND // 2)
    around = np.sort(values[middle[:, None] + np.arange(AROUND) - AROUND // 2], axis=1)[:, AROUND // 2]
    return np.minimum(np.maximum(values, np.minimum(around, level) - limit), np.maximum(around, level) + limit)


def canary_share(values: Floats, canary: Floats) -> Floats:
    """Return how much of each night the canary explains. Both are logarithms; where the canary is NaN it is
    interpolated between the nights around.

    The share is the slope of least squares between winsorised differences from night to night, in which no change of
    level counts more than once, shrunk by what chance alone would give (James and Stein). Of a canary farther off than
    the winsor limit no share is known: it excuses what is off the same way, up to its share, and explains no more.
    """
    known = np.isfinite(canary)
    both = known[1:] & known[:-1]
    if np.count_nonzero(both) < FEWEST:
        return np.zeros(len(values))
    moves = [np.diff(one)[both] for one in (values, canary)]
    y, c = (np.clip(one, -_winsor_limit(one), _winsor_limit(one)) for one in moves)
    square = float(c @ c)
    share = float(c @ y) / square if square else 0.0
    if share <= 0:
        return np.zeros(len(values))
    residuals = y - share * c
    error = float(residuals @ residuals) / (len(y) - 1) / square
    share = min(share, 1.0) * max(0.0, 1 - error / share**2)
    place = np.arange(len(values))
    state = np.interp(place, place[known], canary[known])
    state -= _median(state)
    own = values - _median(values)
    excused = np.clip(own, np.minimum(share * state, 0.0), np.maximum(share * state, 0.0))
    explained: Floats = np.where(np.abs(state) > _winsor_limit(moves[1]), excused, share * state)
    return explained


def _last(clean: Floats) -> tuple[Noise, float] | None:
    before = clean[:-1][-BASELINE:]
    return (estimate_noise(winsorise(before)), float(clean[-1])) if len(before) >= FEWEST else None


@dataclass(frozen=True, slots=True)
class Alarm:
    """Change of a figure's level for the worse that later ones have not undone."""

    since: int
    """Number of the first night."""
    size: float
    """Logarithm of the factor."""
    remaining: float
    """Part of the size that later changes for the better have left."""

    @property
    def effect(self) -> float:
        """Factor by which the nights since then are worse than before, less one."""
        return math.expm1(self.remaining)


@dataclass(slots=True)
class Follower:
    """Level of one figure, followed from night to night."""

    limit: float
    """Share of nights in which chance alone may show a change."""
    passed: int = 0
    """Nights so far, with or without the figure."""
    nights: list[int] = field(default_factory=list)
    """Numbers of the nights that have the figure, from 0."""
    changes: dict[int, float] = field(default_factory=dict)
    """Sum of the steps that begin with a night."""
    worse: list[Alarm] = field(default_factory=list)
    """Alarms that changes for the better haven't undone, the newest last."""
    _values: list[float] = field(default_factory=list)
    _canary: list[float] = field(default_factory=list)
    _clean: Floats = field(default_factory=lambda: np.empty(0))

    def add(self, jobs: Sequence[float], canary: Sequence[float] = ()) -> LevelChange | None:
        """Add a night, by how bad each of its jobs is as a logarithm; returns the change that it shows."""
        self._values, self._canary, self._clean = self._with(jobs, canary)
        self.nights.append(self.passed)
        self.passed += 1
        if step := find_step(self._clean, self.limit):
            since = len(self._values) - step.nights
            self._values[:since] = [value + step.size for value in self._values[:since]]
            self._count(self.nights[since], step.size)
        return step

    def miss(self) -> int:
        """Count a night without the figure; returns how many there are since the last that had it."""
        self.passed += 1
        return self.passed - 1 - self.nights[-1] if self.nights else 0

    def last(self) -> tuple[Noise, float] | None:
        """Return what was expected of the last night, and how bad it was less what the canary explains; None after too
        few nights.
        """
        return _last(self._clean)

    def looks_worse(self, jobs: Sequence[float], canary: Sequence[float] = ()) -> bool:
        """Return whether a night of these jobs is worth another job."""
        if (last := _last(self._with(jobs, canary)[-1])) is None:
            return False
        noise, now = last
        above = now - noise.level - noise.drift
        return math.expm1(above) >= LEAST and above > WORTH_A_JOB * noise.scale

    def _with(self, jobs: Sequence[float], canary: Sequence[float]) -> tuple[list[float], list[float], Floats]:
        """Return all nights and one more, their canaries, and the last nights less what these explain."""
        values = [*self._values, median(jobs)]
        canaries = [*self._canary, median(canary) if canary else math.nan]
        last, last_canaries = (np.array(each[-BASELINE - WINDOWS[-1] :]) for each in (values, canaries))
        return values, canaries, last - canary_share(last, last_canaries)

    def _count(self, since: int, size: float) -> None:
        """Remember a change, and forget alarms of which gains undo half or more."""
        self.changes[since] = self.changes.get(since, 0.0) + size
        if size > 0:
            self.worse.append(Alarm(since, size, size))
        gained = -size
        while self.worse and gained > 0:
            last = self.worse.pop()
            remaining, gained = last.remaining - gained, gained - last.remaining
            if remaining > last.size / 2:
                self.worse.append(replace(last, remaining=remaining))
