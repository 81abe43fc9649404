"""Fit the four numbers of a machine that no data sheet gives to measured times of a few jobs. No torch.

The fit minimises the squared errors of the logarithms of times, in units of their noise, plus the squared distances of
the numbers from their priors, in units of the priors' spreads. So a number on which the rows have no bearing keeps its
prior value, and its prior spread.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from math import log, sqrt
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from engine.simulator.machine import Fitted

NOISE = 0.02
"""Relative error of a measured time."""
NOISE_EXPOSED = 0.05
"""Relative error of a measured time of exposed communication."""
STEP = 1e-3
"""Part of a prior's spread over which derivatives are differences."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Value of a number before any measurement. A number whose bounds meet is not fitted."""

    value: float
    spread: float
    """Standard deviation."""
    low: float
    high: float


UNFITTED = Fitted()
PRIORS = {
    "products": Prior(UNFITTED.products, 0.15, 0.1, 1.0),
    "link": Prior(UNFITTED.link, 0.2, 0.05, 1.0),
    "fading": Prior(UNFITTED.fading, 0.05, 0.0, 1.0),
    "slowdown": Prior(UNFITTED.slowdown, 0.05, 0.0, 1.0),
}
PRIORS_ON_CORES = PRIORS | {"slowdown": Prior(UNFITTED.slowdown, 1.0, 0.0, 4.0)}
"""Priors where several ranks share a processor core, so that collectives compute on it too."""
PRIORS_CHARGED = PRIORS | {"slowdown": Prior(0.0, 1.0, 0.0, 0.0)}
"""Priors where it was measured how much of the cores collectives take, which is all that slows compute down."""


class Observation(NamedTuple):
    """Measured time of a step with the model's prediction of it."""

    predicted: Callable[[Fitted], tuple[float, float]]
    """Predicts, from the fitted numbers, the seconds of the step and of its exposed communication."""
    measured_s: float
    exposed_s: float | None = None
    """Measured seconds of exposed communication, where they are known."""
    name: str = ""
    """Name in the files of systems."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Numbers that fit best."""

    fitted: Fitted
    covariance: Mapping[tuple[str, str], float]
    """By the names of fitted numbers, if errors are the noise and priors that the fit takes them for; a number at a
    bound has the covariance that it would have inside."""

    @property
    def deviations(self) -> dict[str, float]:
        """Return the standard deviation of each fitted number."""
        return {one: sqrt(found) for (one, other), found in self.covariance.items() if one == other}

    def correlation(self, one: str, other: str) -> float:
        deviations = self.deviations
        return self.covariance[one, other] / (deviations[one] * deviations[other])


def fit(rows: Sequence[Observation], priors: Mapping[str, Prior] = PRIORS) -> Estimate:
    """Find the numbers that fit best within their bounds, by least squares (the trust region of scipy). Raises
    ValueError without rows.
    """
    if not rows:
        raise ValueError("A fit needs at least one row.")
    start = replace(UNFITTED, **{name: prior.value for name, prior in priors.items()})
    free = {name: prior for name, prior in priors.items() if prior.low < prior.high}

    def residuals(numbers: np.ndarray) -> np.ndarray:
        tried = replace(start, **dict(zip(free, numbers.tolist(), strict=True)))
        return np.array([*_from_priors(tried, free), *(one for row in rows for one in _misfits(row, tried))])

    high = np.array([prior.high for prior in free.values()])
    steps = STEP * np.array([prior.spread for prior in free.values()])

    def slopes(numbers: np.ndarray) -> np.ndarray:
        """Differ by absolute steps, as a number may be 0, into what the bounds allow."""
        here, signed = residuals(numbers), np.where(numbers + steps > high, -steps, steps)
        return np.stack([(residuals(numbers + step) - here) / step.sum() for step in np.diag(signed)], axis=1)

    found = least_squares(
        residuals,
        [prior.value for prior in free.values()],
        slopes,
        bounds=([prior.low for prior in free.values()], high),
        x_scale=steps / STEP,
    )
    covariance = np.linalg.inv(found.jac.T @ found.jac)  # the priors' residuals make it regular
    numbers = {name: _at_bound(value, free[name]) for name, value in zip(free, found.x.tolist(), strict=True)}
    return Estimate(
        replace(start, **numbers),
        {(a, b): float(covariance[i, j]) for i, a in enumerate(free) for j, b in enumerate(free)},
    )


def closest(found: Estimate) -> str:
    """Say which two of the numbers the rows tell apart the least."""
    one, other = max(combinations(found.deviations, 2), key=lambda pair: abs(found.correlation(*pair)))
    return f"The rows tell {one} and {other} apart the least: correlation {found.correlation(one, other):.2f}."


def as_data(fitted: Fitted, found: Estimate | None = None) -> dict[str, object]:
    """Round the numbers to three digits, as the files of systems have them, and the deviations of an estimate."""

    def short(numbers: Mapping[str, float]) -> dict[str, float]:
        return {name: float(f"{number:.3g}") for name, number in numbers.items()}

    deviations = {"deviations": short(found.deviations)} if found else {}
    return {**short(asdict(fitted)), **deviations}


def _at_bound(value: float, prior: Prior) -> float:
    """Put a number on a bound from which no derivative could tell it."""
    near = [bound for bound in (prior.low, prior.high) if abs(value - bound) < STEP * prior.spread]
    return near[0] if near else value


def _from_priors(fitted: Fitted, priors: Mapping[str, Prior]) -> list[float]:
    return [(getattr(fitted, name) - prior.value) / prior.spread for name, prior in priors.items()]


def _misfits(row: Observation, fitted: Fitted) -> tuple[float, float]:
    """Return the errors of a step's time and of what is exposed, in units of their noise; 0 for an unknown one."""
    time_s, exposed_s = row.predicted(fitted)
    known = row.exposed_s and exposed_s > 0
    exposed = log(exposed_s / row.exposed_s) / NOISE_EXPOSED if known and row.exposed_s else 0.0
    return log(time_s / row.measured_s) / NOISE, exposed
