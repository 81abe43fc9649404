"""The four numbers of a machine that no data sheet gives, from measured times of a few jobs. No torch in it.

What is minimised is the sum of squared errors of the times' logarithms, in units of NOISE, and of how far each number
lies from what is usual, in units of its own spread: two rows say little, and where they say nothing a number stays.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from math import log, sqrt

from engine.planning.machine import Fitted

NOISE = 0.02
"""Of a measured time, relative."""
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
"""Of the interval, for rows that fit exactly don't make a model exact: 13 of the 14 published times that nothing was
fitted to (rows/published.yaml) lie within this factor of the predicted ones.
"""

Timed = tuple[Callable[[Fitted], float], float]
"""A row: its predicted seconds with some numbers, and its measured seconds."""


def fit(rows: Sequence[Timed], *, rounds: int = 7) -> Fitted:
    """The numbers that fit best, and the spread of the errors that are left. Raises ValueError without rows."""
    if not rows:
        raise ValueError("A fit needs at least one row.")
    best, least = UNFITTED, _misfit(UNFITTED, rows)
    steps = {name: usual.spread for name, usual in USUAL.items()}
    for _ in range(rounds):
        moved = True
        while moved:
            moved = False
            for name, usual in USUAL.items():
                for by in (steps[name], -steps[name]):
                    value = min(max(getattr(best, name) + by, usual.low), usual.high)
                    tried = replace(best, **{name: value})
                    misfit = _misfit(tried, rows)
                    if misfit < least * (1 - 1e-4):
                        best, least, moved = tried, misfit, True
        steps = {name: step / 2 for name, step in steps.items()}
    left = sqrt(sum(log(time(best) / measured) ** 2 for time, measured in rows) / len(rows))
    return replace(best, spread=max(LEAST_SPREAD, Z * left))


def _misfit(fitted: Fitted, rows: Sequence[Timed]) -> float:
    numbers = asdict(fitted)
    prior = sum(((numbers[name] - usual.value) / usual.spread) ** 2 for name, usual in USUAL.items())
    return prior + sum((log(time(fitted) / measured) / NOISE) ** 2 for time, measured in rows)
