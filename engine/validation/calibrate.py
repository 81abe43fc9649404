"""Fit the four numbers of a machine that no data sheet gives to measured times of a few jobs. No torch.

The fit minimises the squared errors of the logarithms of times, in units of their noise, plus the squared distances of
the numbers from their priors, in units of the priors' spreads. So a number on which the rows have no bearing keeps its
prior value.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import log, sqrt
from typing import NamedTuple

from engine.simulator.machine import Fitted

NOISE = 0.02
"""A measured time has this relative error."""
NOISE_EXPOSED = 0.05
"""A measured time of exposed communication has this relative error."""
Z = 1.645
"""Nine values in ten lie within so many standard deviations."""


@dataclass(frozen=True, slots=True)
class Prior:
    """A prior is the value of a number before any measurement, with its standard deviation and its bounds."""

    value: float
    spread: float
    low: float
    high: float


UNFITTED = Fitted()
PRIORS = {
    "products": Prior(UNFITTED.products, 0.15, 0.1, 1.0),
    "link": Prior(UNFITTED.link, 0.2, 0.05, 1.0),
    "fading": Prior(UNFITTED.fading, 0.05, 0.0, 1.0),
    "slowdown": Prior(UNFITTED.slowdown, 0.05, 0.0, 1.0),
}
LEAST_SPREAD = 0.25
"""The interval of a prediction is at least this wide, as rows that fit exactly don't make a model exact. It was chosen
so that 12 of the 14 published times to which nothing was fitted (rows/published.yaml) lie within this factor of the
predicted ones. Only other machines can show whether it holds in nine of ten other cases.
"""

PRIORS_ON_CORES = PRIORS | {"slowdown": Prior(UNFITTED.slowdown, 1.0, 0.0, 4.0)}
"""These hold where ranks take turns on processor cores, so that collectives compute on them too."""
PRIORS_CHARGED = PRIORS | {"slowdown": Prior(0.0, 1.0, 0.0, 0.0)}
"""These hold where it was measured how much of the cores collectives take, which is all that slows compute down."""


class Observation(NamedTuple):
    """An observation is the measured time of a step, in seconds, with the model's prediction of it.

    predicted: predicts, from the fitted numbers, the seconds of the step and of its exposed communication. exposed_s:
    the measured seconds of the latter, where they are known. name: what the files of systems call it.
    """

    predicted: Callable[[Fitted], tuple[float, float]]
    measured_s: float
    exposed_s: float | None = None
    name: str = ""


def fit(rows: Sequence[Observation], priors: Mapping[str, Prior] = PRIORS, *, rounds: int = 7) -> Fitted:
    """Find the numbers that fit best, by a pattern search, and the spread of the times' errors that are left.

    rounds: how often the steps of the search are halved. Raises ValueError without rows.
    """
    if not rows:
        raise ValueError("A fit needs at least one row.")
    best = replace(UNFITTED, **{name: prior.value for name, prior in priors.items()})
    least = _misfit(best, rows, priors)
    steps = {name: prior.spread for name, prior in priors.items()}
    for _ in range(rounds):
        moved = True
        while moved:
            moved = False
            for name, prior in priors.items():
                for by in (steps[name], -steps[name]):
                    value = min(max(getattr(best, name) + by, prior.low), prior.high)
                    tried = replace(best, **{name: value})
                    misfit = _misfit(tried, rows, priors)
                    if misfit < least * (1 - 1e-4):
                        best, least, moved = tried, misfit, True
        steps = {name: step / 2 for name, step in steps.items()}
    left = sqrt(sum(log(row.predicted(best)[0] / row.measured_s) ** 2 for row in rows) / len(rows))
    return replace(best, spread=max(LEAST_SPREAD, Z * left))


def rounded(fitted: Fitted) -> dict[str, float]:
    """Round the numbers to three digits, as the files of systems have them."""
    return {name: float(f"{number:.3g}") for name, number in asdict(fitted).items()}


def _misfit(fitted: Fitted, rows: Sequence[Observation], priors: Mapping[str, Prior]) -> float:
    numbers = asdict(fitted)
    found = sum(((numbers[name] - prior.value) / prior.spread) ** 2 for name, prior in priors.items())
    for row in rows:
        time_s, exposed_s = row.predicted(fitted)
        found += (log(time_s / row.measured_s) / NOISE) ** 2
        if row.exposed_s and exposed_s > 0:
            found += (log(exposed_s / row.exposed_s) / NOISE_EXPOSED) ** 2
    return found
