"""The four numbers of a machine that no data sheet gives, from measured times of a few jobs. No torch in it.

What is minimised is the sum of squared errors of the times' logarithms, in units of their noise, and of how far each
number lies from what is usual, in units of its own spread: two rows say little, and where they say nothing a number
stays.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import log, sqrt
from typing import NamedTuple

from engine.simulator.machine import Fitted

NOISE = 0.02
"""Of a measured time, relative."""
NOISE_EXPOSED = 0.05
"""Of a measured time that communication was exposed, relative."""
Z = 1.645
"""Within so many standard deviations lie nine values in ten."""


@dataclass(frozen=True, slots=True)
class Usual:
    """Of one number: what it is where nothing is known, its spread, and its bounds."""

    value: float
    spread: float
    low: float
    high: float


UNFITTED = Fitted()
USUAL = {
    "products": Usual(UNFITTED.products, 0.15, 0.1, 1.0),
    "link": Usual(UNFITTED.link, 0.2, 0.05, 1.0),
    "fading": Usual(UNFITTED.fading, 0.05, 0.0, 1.0),
    "slowdown": Usual(UNFITTED.slowdown, 0.05, 0.0, 1.0),
}
LEAST_SPREAD = 0.25
"""Of the interval, for rows that fit exactly don't make a model exact: 12 of the 14 published times that nothing was
fitted to (rows/published.yaml) lie within this factor of the predicted ones, after which it was chosen: whether it
holds in nine of ten other cases is for other machines to say.
"""

ON_CORES = USUAL | {"slowdown": Usual(UNFITTED.slowdown, 1.0, 0.0, 4.0)}
"""Where ranks take turns on processor cores, so that collectives compute on them too."""
CHARGED = USUAL | {"slowdown": Usual(0.0, 1.0, 0.0, 0.0)}
"""Where it was measured what collectives take of the cores, which is all that they slow compute down by."""


class Timed(NamedTuple):
    """A row. predicted: seconds of its step, and of these the exposed ones, with some numbers; measured_s, exposed_s:
    the same as measured, the second where that is known.
    """

    predicted: Callable[[Fitted], tuple[float, float]]
    measured_s: float
    exposed_s: float | None = None


def fit(rows: Sequence[Timed], known: Mapping[str, Usual] = USUAL, *, rounds: int = 7) -> Fitted:
    """The numbers that fit best, and the spread of the times' errors that are left. known: before any row.

    Raises ValueError without rows.
    """
    if not rows:
        raise ValueError("A fit needs at least one row.")
    best = replace(UNFITTED, **{name: usual.value for name, usual in known.items()})
    least = _misfit(best, rows, known)
    steps = {name: usual.spread for name, usual in known.items()}
    for _ in range(rounds):
        moved = True
        while moved:
            moved = False
            for name, usual in known.items():
                for by in (steps[name], -steps[name]):
                    value = min(max(getattr(best, name) + by, usual.low), usual.high)
                    tried = replace(best, **{name: value})
                    misfit = _misfit(tried, rows, known)
                    if misfit < least * (1 - 1e-4):
                        best, least, moved = tried, misfit, True
        steps = {name: step / 2 for name, step in steps.items()}
    left = sqrt(sum(log(row.predicted(best)[0] / row.measured_s) ** 2 for row in rows) / len(rows))
    return replace(best, spread=max(LEAST_SPREAD, Z * left))


def rounded(fitted: Fitted) -> dict[str, float]:
    """As files have the numbers: in three digits."""
    return {name: float(f"{number:.3g}") for name, number in asdict(fitted).items()}


def _misfit(fitted: Fitted, rows: Sequence[Timed], known: Mapping[str, Usual]) -> float:
    numbers = asdict(fitted)
    found = sum(((numbers[name] - usual.value) / usual.spread) ** 2 for name, usual in known.items())
    for row in rows:
        time_s, exposed_s = row.predicted(fitted)
        found += (log(time_s / row.measured_s) / NOISE) ** 2
        if row.exposed_s and exposed_s > 0:
            found += (log(exposed_s / row.exposed_s) / NOISE_EXPOSED) ** 2
    return found
