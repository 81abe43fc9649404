"""Collectives between their issue and the end of the wait for them: their moments as stamps, then as seconds."""

from collections.abc import Iterable
from dataclasses import dataclass

from engine.measure.clock import Clock, Stamp

MESSAGES = ("send", "recv")
"""Kinds between two ranks."""


@dataclass(slots=True)
class Pending:
    """Pending collective, whose moments are stamped as they come."""

    clock: Clock
    kind: str
    axis: str
    lane: str
    blocking: bool
    """Whether nothing is left to do without its result when it is waited for."""
    at_once: bool
    """Whether the wait for it begins when it is issued."""
    issued: Stamp
    began: Stamp | None = None
    """When its lane came to it, where that is stamped."""
    done: Stamp | None = None
    waited: Stamp | None = None
    resumed: Stamp | None = None
    in_line: bool = False
    """Whether it is on a stream, where it begins when it is issued and the one before it on its lane has ended, and the
    wait for it ends when it has ended.
    """

    def begin(self, *, in_line: bool = False) -> None:
        """Mark as started, or as next in its lane."""
        self.in_line = in_line
        if not in_line:
            self.began = self.clock.stamp()

    def end(self) -> None:
        """Stamp the moment at which its result is there."""
        self.done = self.clock.stamp()

    def wait(self, *, unavoidable: bool) -> None:
        """Stamp the beginning of the wait: now, or when it was issued if nothing was to be done meanwhile."""
        self.waited = self.issued if self.at_once else self.clock.stamp()
        self.blocking |= unavoidable

    def resume(self) -> None:
        """Stamp the end of the wait; only the first time counts."""
        if self.resumed is None and not self.in_line:
            self.resumed = self.clock.stamp()


@dataclass(frozen=True, slots=True)
class TimedCollective:
    """Collective in seconds from the start of the step."""

    pending: Pending
    issued: float
    start: float
    done: float
    waited: float
    resumed: float


def seconds(collectives: Iterable[Pending], origin: Stamp, end_s: float) -> list[TimedCollective]:
    """Return the collectives in seconds from the origin. One that was never waited for lasts until the end.

    Where nobody says when a lane came to a collective, it began when it was issued, or when the one before it on its
    lane ended: as on a stream, and as far as is known of gloo. Of a message between two ranks, whose receive may be
    posted long before it is sent, only the wait is known then.
    """
    timed, lane_free = [], dict[str, float]()
    for pending in collectives:
        issued, began, done, waited, resumed = (
            None if stamp is None else pending.clock.seconds(origin, stamp)
            for stamp in (pending.issued, pending.began, pending.done, pending.waited, pending.resumed)
        )
        assert issued is not None
        waited = end_s if waited is None else waited
        if pending.in_line and done is not None and pending.waited is not None:
            resumed = max(waited, done)
        resumed = waited if resumed is None else resumed
        if pending.kind in MESSAGES and began is None and done is None:
            began, done = waited, resumed
        done = resumed if done is None else min(done, resumed)
        start = min(done, max(issued, lane_free.get(pending.lane, issued)) if began is None else began)
        lane_free[pending.lane] = done
        timed.append(TimedCollective(pending, issued, start, done, waited, resumed))
    return timed
