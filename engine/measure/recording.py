"""Recording: sums of steps' calls, bytes and seconds, and what happened in the last of them."""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

from engine.measure.pending import TimedCollective


@dataclass(slots=True)
class Tally:
    """Sums of one kind of collective along one axis. num_bytes: this rank's input buffers, or what it receives.

    time_s: in flight; 0 if it isn't timed.
    """

    calls: int = 0
    num_bytes: int = 0
    time_s: float = 0.0


@dataclass(slots=True)
class PhaseSeconds:
    """Sums of one phase: compute, waits that nothing could avoid, other waits, and compute that hides something."""

    compute_s: float = 0.0
    blocking_s: float = 0.0
    exposed_s: float = 0.0
    hidden_s: float = 0.0


@dataclass(slots=True)
class AxisSeconds:
    """Seconds for which collectives along one axis were waited for, and were in flight while the rank computed.

    Of collectives in flight together each counts.
    """

    exposed_s: float = 0.0
    hidden_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """Event of a step, in seconds from its start. kind: phase, wait or collective, which is issued first."""

    lane: str
    kind: str
    name: str
    start_s: float
    end_s: float
    issued_s: float | None = None


COMPUTE = "compute"
"""Lane of what the rank itself does."""


@dataclass(slots=True)
class Recording:
    """Record since the last clear(): sums over `steps` steps, marks and collectives of the last
    one.

    timed: whether anything but the length of the steps was; if not, phases, axes, lanes and events are empty. lanes:
    seconds with a collective in flight. processor_s: of all threads of this process; received_bytes, sent_bytes: of the
    host name's network.
    """

    timed: bool = True
    steps: int = 0
    time_s: float = 0.0
    tallies: dict[tuple[str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))
    phases: dict[str, PhaseSeconds] = field(default_factory=lambda: defaultdict(PhaseSeconds))
    axes: dict[str, AxisSeconds] = field(default_factory=lambda: defaultdict(AxisSeconds))
    lanes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    processor_s: float = 0.0
    received_bytes: int = 0
    sent_bytes: int = 0
    marks: list[tuple[str, float]] = field(default_factory=list)
    collectives: list[TimedCollective] = field(default_factory=list)

    @property
    def events(self) -> list[TraceEvent]:
        """Return the last step's phases, then each of its collectives and the wait for it."""
        events = [TraceEvent(COMPUTE, "phase", name, start, end) for (name, start), (_, end) in pairwise(self.marks)]
        for f in self.collectives:
            wait = TraceEvent(COMPUTE, "wait", f"{f.pending.kind} {f.pending.axis}", f.waited, f.resumed)
            events += [TraceEvent(f.pending.lane, "collective", f.pending.kind, f.start, f.done, f.issued), wait]
        return events
