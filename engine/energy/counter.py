"""Counters of energy, and what one counts between a start and a stop. No torch.

A counter that goes round is read again between steps, so that it can't have gone round twice unseen.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from engine.result.schema.step import Component

MOST_W = 1000.0
"""No processor, and no memory of one, takes more: a counter that goes round could have counted so much at most."""


class Unreadable(Exception):
    """Reason why energy can't be read, as a clause without a full stop. mend: somebody could change that."""

    def __init__(self, clause: str, *, mend: bool = False) -> None:
        super().__init__(clause)
        self.mend = mend


@dataclass(frozen=True, slots=True)
class Counter:
    """Joules that something has taken since some moment."""

    component: Component
    source: str
    """Source that is read, in words."""
    scope: str
    """Whose energy that is, in words."""
    read: Callable[[], float]
    """Raises Unreadable."""
    renewed_s: float
    """Age that a reading may have."""
    round_j: float | None = None
    """Joules at which it begins at 0 again, None for never."""
    sample_s: float | None = None
    """Seconds between samples of power, where that is what is summed."""
    close: Callable[[], None] = lambda: None
    """Ends what runs beside it."""


@dataclass(frozen=True, slots=True)
class Found:
    """Counters of some components, and why others have none."""

    counters: tuple[Counter, ...] = ()
    missing: Mapping[Component, Unreadable] = field(default_factory=dict)

    @classmethod
    def open(cls, sources: Mapping[Component, Callable[[], Iterable[Counter]]]) -> Self:
        """Open the counters of each component: all or, as some make no sum, none."""
        counters: list[Counter] = []
        missing: dict[Component, Unreadable] = {}
        for component, source in sources.items():
            try:
                counters += list(source())
            except Unreadable as why:
                missing[component] = why
        return cls(tuple(counters), missing)

    @property
    def components(self) -> frozenset[Component]:
        """Components that have counters."""
        return frozenset(counter.component for counter in self.counters)

    def without(self, *components: Component) -> "Found":
        """Leave out these components."""
        missing = {component: why for component, why in self.missing.items() if component not in components}
        return Found(tuple(counter for counter in self.counters if counter.component not in components), missing)

    def or_else(self, other: "Found") -> "Found":
        """Take components that have no counters here from the other."""
        more = other.without(*self.components)
        counters = self.counters + more.counters
        known = {counter.component for counter in counters}
        reasons = {**self.missing, **more.missing}
        return Found(counters, {component: why for component, why in reasons.items() if component not in known})


class Count:
    """Joules that one counter has counted, from each start to the stop after it. Times are seconds of one clock.

    Each method raises Unreadable.
    """

    def __init__(self, counter: Counter) -> None:
        self.counter, self.joules = counter, 0.0
        self._last_j = self._last_s = 0.0

    def start(self, now_s: float) -> None:
        """Count from here on."""
        self._last_j, self._last_s = self.counter.read(), now_s

    def stop(self, now_s: float) -> None:
        """Count what was taken since the last start or stop, and go on from here."""
        joules, round_j = self.counter.read(), self.counter.round_j
        elapsed_s = now_s - self._last_s
        taken = joules - self._last_j
        if round_j is not None and elapsed_s * MOST_W >= round_j:
            raise Unreadable(
                f"the counter of {self.counter.source} begins anew every {round_j:,.0f} J and was not read for "
                f"{elapsed_s:,.0f} s, in which it may have done so more than once"
            )
        if taken < 0:
            if round_j is None:
                raise Unreadable(f"the counter of {self.counter.source} went backwards: it was reset")
            taken += round_j
        self.joules += taken
        self._last_j, self._last_s = joules, now_s
