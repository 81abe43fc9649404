"""A counter of energy counts between a start and a stop. No torch.

A counter that goes round is read again between steps, so that it can't have gone round twice unseen.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from engine.result.schema.step import Component

MOST_W = 1000.0
"""No processor, and no memory of one, takes more: a counter that goes round could have counted so much at most."""


class Unreadable(Exception):
    """Energy can't be read, for a reason in a clause without a full stop. mend: somebody could change that."""

    def __init__(self, clause: str, *, mend: bool = False) -> None:
        super().__init__(clause)
        self.mend = mend


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter gives the joules that something has taken since some moment.

    source, scope: in words, what is read and whose energy that is. read: raises Unreadable. renewed_s: how old what it
    says may be. round_j: the joules at which it begins at 0 again, None for never. sample_s: seconds between samples of
    power, where that is what is summed. close: ends what runs beside it.
    """

    component: Component
    source: str
    scope: str
    read: Callable[[], float]
    renewed_s: float
    round_j: float | None = None
    sample_s: float | None = None
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class Found:
    """It holds the counters of some components, and why others have none."""

    counters: tuple[Counter, ...] = ()
    missing: Mapping[Component, Unreadable] = field(default_factory=dict)

    @property
    def components(self) -> frozenset[Component]:
        """Name the components that have counters."""
        return frozenset(counter.component for counter in self.counters)


class Count:
    """It is what one counter has counted, from each start to the stop after it. Times are seconds of one clock.

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
