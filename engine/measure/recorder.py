"""Record what the funnel sends and when: calls and bytes of each collective, and where the time of a step goes.

A step is a row of phases (mark()). While collectives are in flight the rank computes, or waits for one of them: waits
are exposed communication, what is left of the step is compute, and compute with a collective in flight hides it.
"""

from bisect import bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import torch

from engine.measure.clock import Clock, EventClock, HostClock, Stamp
from engine.measure.intervals import common, covered, length, union, within
from engine.measure.machine import link_bytes, processor_s
from engine.measure.pending import Pending, TimedCollective, seconds

COMPUTE = "compute"
"""Lane of what the rank itself does."""


@dataclass(slots=True)
class Tally:
    """Sums of one kind of collective along one axis."""

    calls: int = 0
    num_bytes: int = 0
    """Bytes of this rank's input buffers, or those it receives."""
    time_s: float = 0.0
    """In flight; 0 if it isn't timed, like the next two."""
    exposed_s: float = 0.0
    """Waited for."""
    hidden_s: float = 0.0
    """In flight while the rank computed."""


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


@dataclass(slots=True)
class Recording:
    """Sums over `steps` steps since the last clear(), marks and collectives of the last one."""

    timed: bool = True
    """Whether anything but the length of the steps was timed; if not, phases, axes, lanes and events are empty."""
    steps: int = 0
    time_s: float = 0.0
    tallies: dict[tuple[str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))
    phases: dict[str, PhaseSeconds] = field(default_factory=lambda: defaultdict(PhaseSeconds))
    axes: dict[str, AxisSeconds] = field(default_factory=lambda: defaultdict(AxisSeconds))
    lanes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds with a collective in flight."""
    processor_s: float = 0.0
    """Seconds of all threads of this process."""
    received_bytes: int = 0
    """Bytes over the host name's network, as sent_bytes."""
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


class Recorder:
    """Record of every collective, which the funnel reports, and steps and phases, which the trainer does.

    What lies between two steps, such as saving a checkpoint, is not recorded. timing=False: nothing but calls, bytes
    and the length of each step, for which a HostClock is enough. alone: one rank, for which no network is asked.
    """

    _pending_class: type[Pending] = Pending

    def __init__(self, clock: Clock | None = None, *, timing: bool = True, alone: bool = False) -> None:
        self._clock, self._timing, self._alone = clock or HostClock(), timing, alone
        self.clear()

    @classmethod
    def on(cls, device: torch.device, *, breakdown: bool, alone: bool = False) -> "Recorder":
        """Return the recorder for a device. breakdown: whether it is to record where the time of a step goes.

        On CUDA that takes events, two for a collective that is waited for at once and three for another; on CPUs it
        costs nothing and is recorded in any case.
        """
        if device.type != "cuda":
            return cls(alone=alone)
        return cls(EventClock(device), alone=alone) if breakdown else cls(HostClock(device), timing=False)

    def issued(
        self, kind: str, axis: str, lane: str, num_bytes: int, *, blocking: bool, at_once: bool = False
    ) -> Pending | None:
        """Count a collective that is about to be issued. Who issues it stamps its moments, if there is one.

        blocking: nothing can be done without its result; at_once: nothing will be.
        """
        if not self._marks:
            return None
        tally = self._tallies[kind, axis]
        tally.calls += 1
        tally.num_bytes += num_bytes
        if not self._timing:
            return None
        pending = self._pending_class(self._clock, kind, axis, lane, blocking, blocking or at_once, self._clock.stamp())
        self._collectives.append(pending)
        return pending

    def start_step(self, phase: str) -> None:
        """Begin a step with this phase; one that was not ended is forgotten."""
        self._forget_step()
        self._used = self._taken()
        self.mark(phase)

    def mark(self, phase: str) -> None:
        """Begin the phase now, and end the one before it."""
        self._marks.append((phase, self._clock.stamp()))

    def _mark_end(self) -> None:
        self._marks.append(("", self._clock.stamp_end()))

    def end_step(self) -> float:
        """Add up what came since start_step(); return its length in seconds. On CUDA the host waits for the device."""
        self._mark_end()
        origin, total = self._marks[0][1], self.total
        marks = [(name, self._clock.seconds(origin, stamp)) for name, stamp in self._marks]
        step_s = marks[-1][1]
        before, after = self._used, self._taken()
        total.processor_s += after[0] - before[0]
        total.received_bytes += after[1] - before[1]
        total.sent_bytes += after[2] - before[2]
        total.steps += 1
        total.time_s += step_s
        for key, tally in self._tallies.items():
            total.tallies[key].calls += tally.calls
            total.tallies[key].num_bytes += tally.num_bytes
        if self._timing:
            self._add_times(marks, seconds(self._collectives, origin, step_s))
        self._forget_step()
        return step_s

    def _add_times(self, marks: list[tuple[str, float]], collectives: list[TimedCollective]) -> None:
        total = self.total
        waits = union((f.waited, f.resumed) for f in collectives)
        in_flight = union((f.start, f.done) for f in collectives)
        for (name, start), (_, end) in pairwise(marks):
            total.phases[name].compute_s += end - start
            communicating = within(start, end, in_flight)
            waiting = common(communicating, within(start, end, waits))
            total.phases[name].hidden_s += length(communicating) - length(waiting)
        begins = [start for _, start in marks[:-1]]
        for f in collectives:
            hidden = f.done - f.start - covered(f.start, f.done, waits)
            self._add(f, hidden, marks[bisect_right(begins, f.waited) - 1][0])
        total.marks, total.collectives = marks, collectives

    def _add(self, f: TimedCollective, hidden_s: float, waited_in: str) -> None:
        """Add one collective to the sums, and the wait for it to those of the phase in which it was."""
        exposed_s = f.resumed - f.waited
        tally = self.total.tallies[f.pending.kind, f.pending.axis]
        tally.time_s += f.done - f.start
        self.total.lanes[f.pending.lane] += f.done - f.start
        for sums in (tally, self.total.axes[f.pending.axis]):
            sums.exposed_s += exposed_s
            sums.hidden_s += hidden_s
        waiting = self.total.phases[waited_in]
        waiting.compute_s -= exposed_s
        if f.pending.blocking:
            waiting.blocking_s += exposed_s
        else:
            waiting.exposed_s += exposed_s

    def clear(self) -> None:
        """Forget everything recorded so far."""
        self.record_into(self.new_recording())

    def new_recording(self) -> Recording:
        return Recording(self._timing)

    def record_into(self, recording: Recording) -> None:
        """Add to this recording from the next step on."""
        self.total = recording
        self._forget_step()

    def _taken(self) -> tuple[float, int, int]:
        """Return what this process has taken of its machine so far, where times are recorded."""
        if not self._timing:
            return 0.0, 0, 0
        return (processor_s(), 0, 0) if self._alone else (processor_s(), *link_bytes())

    def _forget_step(self) -> None:
        self._clock.forget()
        self._marks: list[tuple[str, Stamp]] = []
        self._used = (0.0, 0, 0)
        self._collectives: list[Pending] = []
        self._tallies: dict[tuple[str, str], Tally] = defaultdict(Tally)
