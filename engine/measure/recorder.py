"""What the funnel sends and when: calls and bytes of each collective, and where the time of a step went.

A step is a row of phases (mark()). While collectives are in flight the rank computes, or waits for one of them: waits
are exposed communication, flight while the rank computes is hidden, and what is left of the step is compute.
"""

import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from operator import itemgetter

import torch

from engine.measure.intervals import common, union

Stamp = float | torch.cuda.Event


class Clock:
    """Stamps moments of this rank's work: host time, or events on the current stream of a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def stamp(self) -> Stamp:
        """The present moment of the current stream."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Stamp, end: Stamp) -> float:
        """Time between two stamps; on CUDA, waits for the second one."""
        if isinstance(start, torch.cuda.Event):
            assert isinstance(end, torch.cuda.Event)
            end.synchronize()
            return start.elapsed_time(end) / 1e3
        assert isinstance(end, float)
        return end - start


@dataclass(slots=True)
class Tally:
    """Sums for one kind of collective along one axis. num_bytes: the input buffers of this rank. time_s: in flight."""

    calls: int = 0
    num_bytes: int = 0
    time_s: float = 0.0


@dataclass(slots=True)
class PhaseSeconds:
    """Seconds of one phase: compute, waits that nothing could avoid, other waits, and communication behind compute."""

    compute_s: float = 0.0
    blocking_s: float = 0.0
    exposed_s: float = 0.0
    hidden_s: float = 0.0


@dataclass(slots=True)
class AxisSeconds:
    """Seconds waited for collectives along one axis, and seconds that they were in flight while the rank computed."""

    exposed_s: float = 0.0
    hidden_s: float = 0.0


@dataclass(slots=True)
class Flight:
    """One collective, whose moments are stamped as they come.

    blocking: waited for when there is nothing left to do without its result. began: when its lane came to it, where
    that is known (CUDA).
    """

    clock: Clock
    kind: str
    axis: str
    lane: str
    num_bytes: int
    blocking: bool
    issued: Stamp
    began: Stamp | None = None
    done: Stamp | None = None
    waited: Stamp | None = None
    resumed: Stamp | None = None

    def begin(self) -> None:
        """Its lane comes to it."""
        self.began = self.clock.stamp()

    def end(self) -> None:
        """Its result is there."""
        self.done = self.clock.stamp()

    def resume(self) -> None:
        """The rank goes on; only the first time counts."""
        if self.resumed is None:
            self.resumed = self.clock.stamp()


@dataclass(frozen=True, slots=True)
class Span:
    """Something of a step, in seconds from its start. kind: phase, wait or collective, which is issued first."""

    lane: str
    kind: str
    name: str
    start_s: float
    end_s: float
    issued_s: float | None = None


_START, _END = itemgetter(0), itemgetter(1)
COMPUTE = "compute"
"""The lane of what the rank itself does."""


@dataclass(frozen=True, slots=True)
class _Flown:
    """A flight in seconds from the start of the step."""

    flight: Flight
    issued: float
    start: float
    done: float
    waited: float
    resumed: float


@dataclass(slots=True)
class Recording:
    """What was recorded since the last clear(): sums over `steps` steps, and the marks and flights of the last one."""

    steps: int = 0
    time_s: float = 0.0
    tallies: dict[tuple[str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))
    phases: dict[str, PhaseSeconds] = field(default_factory=lambda: defaultdict(PhaseSeconds))
    axes: dict[str, AxisSeconds] = field(default_factory=lambda: defaultdict(AxisSeconds))
    marks: list[tuple[str, float]] = field(default_factory=list)
    flown: list[_Flown] = field(default_factory=list)

    @property
    def spans(self) -> list[Span]:
        """Of the last step: its phases, then each collective and the wait for it."""
        spans = [Span(COMPUTE, "phase", name, start, end) for (name, start), (_, end) in pairwise(self.marks)]
        for f in self.flown:
            wait = Span(COMPUTE, "wait", f"{f.flight.kind} {f.flight.axis}", f.waited, f.resumed)
            spans += [Span(f.flight.lane, "collective", f.flight.kind, f.start, f.done, f.issued), wait]
        return spans


class Recorder:
    """Told by Comm of every collective, and by who trains of the phases of a step. What lies between two steps, such
    as saving a checkpoint, is not recorded.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock(torch.device("cpu"))
        self.total = Recording()
        self._marks: list[tuple[str, Stamp]] = []
        self._flights: list[Flight] = []

    def issued(self, kind: str, axis: str, lane: str, num_bytes: int, *, blocking: bool) -> Flight:
        """A collective is about to be issued; who issues it stamps the moments that follow."""
        flight = Flight(self.clock, kind, axis, lane, num_bytes, blocking, self.clock.stamp())
        if self._marks:
            self._flights.append(flight)
        return flight

    def start_step(self, phase: str) -> None:
        """A step begins with this phase."""
        self._marks, self._flights = [], []
        self.mark(phase)

    def mark(self, phase: str) -> None:
        """The phase begins now, and the one before it ends."""
        self._marks.append((phase, self.clock.stamp()))

    def end_step(self) -> float:
        """Add up what came since start_step(); returns its length in seconds. On CUDA it waits for the device."""
        self.mark("")
        origin = self._marks[0][1]
        marks = [(name, self.clock.seconds(origin, stamp)) for name, stamp in self._marks]
        total, step_s = self.total, marks[-1][1]
        for (name, start), (_, end) in pairwise(marks):
            total.phases[name].compute_s += end - start
        flown = self._flown(origin, step_s)
        waits = union((f.waited, f.resumed) for f in flown)
        begins = [start for _, start in marks[:-1]]
        for f in flown:
            near = waits[bisect_right(waits, f.start, key=_END) : bisect_left(waits, f.done, key=_START)]
            hidden = f.done - f.start - sum(end - start for start, end in common(near, [(f.start, f.done)]))
            self._add(f, hidden, *(marks[bisect_right(begins, moment) - 1][0] for moment in (f.start, f.waited)))
        total.steps += 1
        total.time_s += step_s
        total.marks, total.flown = marks, flown
        self._marks, self._flights = [], []
        return step_s

    def _flown(self, origin: Stamp, end_s: float) -> list[_Flown]:
        """The flights in seconds from the origin. One that was never waited for lasts until the end.

        gloo doesn't say when it came to a collective: then it began when it was issued, or when the one before it on
        its lane ended.
        """
        flown, lane_free = [], dict[str, float]()
        for flight in self._flights:
            issued, began, done, waited, resumed = (
                None if stamp is None else self.clock.seconds(origin, stamp)
                for stamp in (flight.issued, flight.began, flight.done, flight.waited, flight.resumed)
            )
            assert issued is not None
            waited = end_s if waited is None else waited
            resumed = waited if resumed is None else resumed
            done = resumed if done is None else min(done, resumed)
            start = min(done, max(issued, lane_free.get(flight.lane, issued)) if began is None else began)
            lane_free[flight.lane] = done
            flown.append(_Flown(flight, issued, start, done, waited, resumed))
        return flown

    def _add(self, f: _Flown, hidden_s: float, issued_in: str, waited_in: str) -> None:
        """Add one flight to the sums, in the phases in which it was issued and waited for."""
        exposed_s = f.resumed - f.waited
        tally = self.total.tallies[f.flight.kind, f.flight.axis]
        tally.calls += 1
        tally.num_bytes += f.flight.num_bytes
        tally.time_s += f.done - f.start
        axis = self.total.axes[f.flight.axis]
        axis.exposed_s += exposed_s
        axis.hidden_s += hidden_s
        self.total.phases[issued_in].hidden_s += hidden_s
        waiting = self.total.phases[waited_in]
        waiting.compute_s -= exposed_s
        if f.flight.blocking:
            waiting.blocking_s += exposed_s
        else:
            waiting.exposed_s += exposed_s

    def clear(self) -> None:
        """Forget everything recorded so far."""
        self.total = Recording()
        self._marks, self._flights = [], []
