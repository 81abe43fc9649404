"""What the funnel sends and when: calls and bytes of each collective, and where the time of a step went.

A step is a row of phases (mark()). While a collective is in flight the rank computes, or waits for it: waits are
exposed communication, flight without a wait is hidden, and what is left of the step is compute.
"""

import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise

import torch

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
    """Seconds of one phase: compute, waits that nothing could avoid, other waits, and communication behind them."""

    compute_s: float = 0.0
    blocking_s: float = 0.0
    exposed_s: float = 0.0
    hidden_s: float = 0.0


@dataclass(slots=True)
class AxisSeconds:
    """Seconds waited for collectives along one axis, and seconds that they were in flight without a wait."""

    exposed_s: float = 0.0
    hidden_s: float = 0.0


@dataclass(slots=True)
class Flight:
    """One collective. blocking: waited for where it is issued, because the next operation needs its result.

    began: when its lane came to it, where that is known (CUDA).
    """

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


@dataclass(frozen=True, slots=True)
class Span:
    """Something of a step, in seconds from its start. kind: phase, wait or collective."""

    lane: str
    kind: str
    name: str
    start_s: float
    end_s: float


COMPUTE = "compute"
"""The lane of what the rank itself does."""


@dataclass(slots=True)
class Recording:
    """What was recorded since the last clear(): sums over `steps` steps, and the spans of the last one."""

    steps: int = 0
    time_s: float = 0.0
    tallies: dict[tuple[str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))
    phases: dict[str, PhaseSeconds] = field(default_factory=lambda: defaultdict(PhaseSeconds))
    axes: dict[str, AxisSeconds] = field(default_factory=lambda: defaultdict(AxisSeconds))
    spans: list[Span] = field(default_factory=list)


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
        flight = Flight(kind, axis, lane, num_bytes, blocking, self.clock.stamp())
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
        spans = [Span(COMPUTE, "phase", name, start, end) for (name, start), (_, end) in pairwise(marks)]
        for span in spans:
            total.phases[span.name].compute_s += span.end_s - span.start_s
        lane_free: dict[str, float] = {}
        for flight in self._flights:
            spans += self._add(flight, origin, marks, lane_free)
        total.steps += 1
        total.time_s += step_s
        total.spans = spans
        self._marks, self._flights = [], []
        return step_s

    def _add(
        self, flight: Flight, origin: Stamp, marks: list[tuple[str, float]], lane_free: dict[str, float]
    ) -> list[Span]:
        """Add one flight to the sums; returns its span and that of its wait. lane_free: when each lane's last ended."""

        def moment(stamp: Stamp) -> float:
            return self.clock.seconds(origin, stamp)

        def phase_of(time_s: float) -> PhaseSeconds:
            return self.total.phases[next(name for name, start in reversed(marks[:-1]) if start <= time_s)]

        issued = moment(flight.issued)
        waited = marks[-1][1] if flight.waited is None else moment(flight.waited)
        resumed = waited if flight.resumed is None else moment(flight.resumed)
        done = resumed if flight.done is None else min(resumed, moment(flight.done))
        begun = max(issued, lane_free.get(flight.lane, issued)) if flight.began is None else moment(flight.began)
        start = min(done, begun)
        lane_free[flight.lane] = done
        exposed, hidden = resumed - waited, max(0.0, min(done, waited) - start)

        tally = self.total.tallies[flight.kind, flight.axis]
        tally.calls += 1
        tally.num_bytes += flight.num_bytes
        tally.time_s += done - start
        axis = self.total.axes[flight.axis]
        axis.exposed_s += exposed
        axis.hidden_s += hidden
        phase_of(issued).hidden_s += hidden
        waiting = phase_of(waited)
        waiting.compute_s -= exposed
        if flight.blocking:
            waiting.blocking_s += exposed
        else:
            waiting.exposed_s += exposed
        return [
            Span(flight.lane, "collective", flight.kind, start, done),
            Span(COMPUTE, "wait", f"{flight.kind} {flight.axis}", waited, resumed),
        ]

    def clear(self) -> None:
        """Forget everything recorded so far."""
        self.total = Recording()
        self._marks, self._flights = [], []
