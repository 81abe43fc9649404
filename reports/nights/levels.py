"""Levels of one figure through its nights, of which what is open, or was mended, is taken out."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from reports.nights import noise
from reports.nights.canary import canary_share
from reports.nights.noise import Floats

FEWEST, BASELINE = 20, 90
"""Fewest and most nights before a change that tell what is usual."""
KEPT = 365
"""Last nights that are remembered."""
SHOWN = 3
"""Fewest nights that show a change."""
GIVEN_UP = 12
"""Nights without a figure after which nobody measures it any more."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Expectation of a figure's last night, by the nights before it."""

    level: float
    scale: float
    """Standard deviation of a night around it."""
    degrees_of_freedom: int
    now: float
    """How bad the night was, less what the canary explains."""


@dataclass(slots=True)
class Slowdown:
    """Time in which a figure is worse than before."""

    figure: int
    since: int
    """First night."""
    found: int
    """Night that showed it."""
    nights: int
    """Last nights that showed it."""
    changes: list[tuple[int, float]]
    """First nights and sizes, as logarithms of a factor, of the changes of the figure's level that it consists of."""
    ended: int | None = None
    """Night that showed its end."""
    without: int = 0
    """First night without it, once it has returned."""
    returned: bool = False
    """Whether it ended as the figure came back, and not as nobody measured it any more."""

    @property
    def size(self) -> float:
        """Logarithm of the factor by which the figure is worse than before."""
        return sum(size for _, size in self.changes)

    @property
    def last(self) -> int | None:
        """Last night in it; None while it is open."""
        if self.ended is None:
            return None
        return max(self.since, self.without - 1 if self.returned else self.ended - SHOWN)


@dataclass(frozen=True, slots=True)
class Gain:
    """Change for the better of a figure without an open slowdown."""

    figure: int
    since: int
    found: int
    size: float
    """Logarithm of the factor, which is negative."""


@dataclass(slots=True)
class Row:
    """One figure's nights."""

    nights: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    """Logarithms of how bad each night is, those before a change moved by it."""
    canary: list[float] = field(default_factory=list)
    clean: Floats = field(default_factory=lambda: np.empty(0))
    """The last KEPT values less what the canary explains."""
    open: list[Slowdown] = field(default_factory=list)
    mended: list[Slowdown] = field(default_factory=list)
    """Those that were over once, whose nights are moved as if they had not been."""

    def append(self, night: int, jobs: Sequence[float], canary: Sequence[float]) -> None:
        self.nights.append(night)
        self.values.append(median(jobs))
        self.canary.append(median(canary) if canary else math.nan)

    def move(self, since: int, size: float) -> None:
        """Move the nights before that one."""
        self.values = [value + size * (night < since) for night, value in zip(self.nights, self.values, strict=True)]
        tidy([self])

    def end(self, slowdown: Slowdown, without: int) -> None:
        """Take an open slowdown out of the nights, by the size that all its nights tell. without: first without it."""
        self.open.remove(slowdown)
        slowdown.ended, slowdown.returned, slowdown.without = self.nights[-1], True, without
        numbers = np.array(self.nights[-KEPT:])
        for since, size in slowdown.changes[1:]:
            if np.count_nonzero((numbers >= since) & (numbers < without)) < SHOWN:  # a part of its end
                slowdown.changes.remove((since, size))
                self.move(since, -size)
        inside = self.clean[(numbers >= slowdown.since) & (numbers < without)]
        before = self.clean[numbers < slowdown.since][-BASELINE:]
        if len(inside) and len(before):
            (since, size), *others = slowdown.changes
            left = float(np.median(inside) - np.median(before))
            self.move(since, left)
            slowdown.changes = [(since, size + left), *others]
        for _, size in slowdown.changes:
            self.move(without, -size)
        self.mended.append(slowdown)

    def as_measured(self) -> Floats:
        """Return the last KEPT nights less what the canary explains, with what was mended in them."""
        nights, numbers = self.clean.copy(), np.array(self.nights[-KEPT:])
        for one in self.mended:
            for since, size in one.changes:
                nights[(numbers >= since) & (numbers < one.without)] += size
        return nights

    def put_back(self, slowdown: Slowdown) -> None:
        self.mended.remove(slowdown)
        for since, size in slowdown.changes:
            self.move(slowdown.without, size)
            self.move(since, -size)

    def is_measured(self, size: float, window: int) -> bool:
        """Return whether half of a change of the last nights is there without the canary, which may be slow alone."""
        last, before = self.values[-window:], self.values[:-window][-BASELINE:]
        return (median(last) - median(before)) * math.copysign(1.0, size) >= abs(size) / 2

    def expected(self) -> Expected | None:
        if len(self.clean) <= FEWEST:
            return None
        before = noise.winsorise(self.clean[None, -BASELINE - 1 : -1], noise.AROUND[0])[0]
        scale = max(float(before.std(ddof=1)), noise.LEAST_SCALE) * math.sqrt(1 + 1 / len(before))
        return Expected(float(np.median(before)), scale, len(before) - 1, float(self.clean[-1]))


def times(slowdowns: Iterable[Slowdown]) -> int:
    """Return how many of these slowdowns, which are over, were at different times."""
    count, until = 0, -1
    for one in sorted(slowdowns, key=lambda one: one.without):
        if one.since >= until:
            count, until = count + 1, one.without
    return count


def tidy(rows: Sequence[Row]) -> Floats:
    """Take the canary's share out of rows of as many nights each."""
    values, canary = np.array([row.values[-KEPT:] for row in rows]), np.array([row.canary[-KEPT:] for row in rows])
    clean = values - canary_share(values, canary)
    for row, nights in zip(rows, clean, strict=True):
        row.clean = nights
    return clean
