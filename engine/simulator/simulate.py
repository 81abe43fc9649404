"""A trace is played on a machine: how long does the step take, and where does its time go? No torch in it.

Messages between two ranks take no time here: only all stages of a pipeline together can say when they come
(tracing/stages.py).

One rank stands for all, which do the same at the same time. It computes in the trace's order. A collective begins when
it is issued and those before it on its lane are over. Collectives that are in flight at once and use the same kind of
link, within nodes or between them, share it equally, and compute is slower while any is in flight. A wait lasts until
the collective is over.

Where the processor time of collectives was measured, compute is slower by what those in flight between nodes take. They
take half of the core at most, and are slower where they need more. Within a node such ranks exchange through memory,
which each does itself while it waits. Exposed and hidden communication mean what they do in measure/recorder.py.
"""

from collections import defaultdict, deque
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf

from engine.comm.collective import AXIS_OF_LANE, POINT_TO_POINT
from engine.grid import Axis, Grid
from engine.result.schema.step import Span, Timeline
from engine.simulator.events import Issue, Mark, Trace, Wait
from engine.simulator.machine import MachineModel

END_S = 1e-12
"""A collective that would take so long is over: the rest is rounding."""
FAIR = 0.5
"""While the rank computes, threads of collectives get this share of its core at most, as schedulers are fair."""


@dataclass(slots=True, eq=False)
class _Flight:
    """Collective in flight."""

    event: Issue
    axis: Axis
    left_s: float
    """Seconds that it still takes on a link of its own."""
    issued_s: float
    between_nodes: bool
    share: float
    """Part of the rank's core that it takes meanwhile."""
    own: bool
    """Whether the rank carries it out itself when it waits."""
    start_s: float | None = None
    end_s: float | None = None
    hidden_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Simulated:
    """Simulated step: compute_s and the sum of exposed_s make time_s, whose interval is low_s to high_s.

    hidden_s: compute with a collective in flight. exposed_s, hidden_by_axis_s: by axis, as in a result's breakdown.
    schedule: of a pipeline, whose parts are means over its stages, with idle time as exposed along the one that cuts.
    """

    time_s: float
    low_s: float
    high_s: float
    compute_s: float
    hidden_s: float
    exposed_s: dict[str, float]
    hidden_by_axis_s: dict[str, float]
    phases_s: dict[str, float]
    peak_bytes: int
    timeline: Timeline | None = None
    schedule: str | None = None

    @property
    def communication_s(self) -> float:
        """Exposed communication of all axes."""
        return sum(self.exposed_s.values())

    @classmethod
    def never(cls) -> "Simulated":
        """Return a step that is never over."""
        return cls(inf, inf, inf, inf, 0.0, {}, {}, {}, 0)


def in_turns(step: Simulated, ranks_per_core: float) -> Simulated:
    """Find the same step of one of several ranks that take turns on a core. It computes for a shorter time, since
    others often wait while it does, and waits longer, since they often compute while it doesn't.

    The step was simulated with each of k ranks at its share s = 1/k of the core. Alone, a rank would compute for
    C = s S of those S seconds. In a step of T seconds it computes for R, and each of the k - 1 others wants the core
    for a part R/T of the time, so that R = C (1 + (k - 1) R / T): P. Schweitzer's approximate mean value analysis of
    one queue with k customers. The step has no timeline, as it isn't known which waits are longer.
    """
    alone_s = step.compute_s / ranks_per_core
    if ranks_per_core == 1 or not alone_s:
        return step
    compute_s = alone_s / (1 - (ranks_per_core - 1) * alone_s / step.time_s)
    shorter = compute_s / step.compute_s
    longer = (step.time_s - compute_s) / step.communication_s if step.communication_s else 1.0
    return replace(
        step,
        compute_s=compute_s,
        hidden_s=step.hidden_s * shorter,
        hidden_by_axis_s={axis: seconds * shorter for axis, seconds in step.hidden_by_axis_s.items()},
        exposed_s={axis: seconds * longer for axis, seconds in step.exposed_s.items()},
        timeline=None,
    )


def share_of(compute_s: float, time_s: float, ranks_per_core: float) -> float:
    """Invert in_turns: find the seconds of compute at a share of the core from those seen in a step."""
    return ranks_per_core * compute_s / (1 + (ranks_per_core - 1) * compute_s / time_s)


@dataclass(frozen=True, slots=True)
class Forecast:
    """Simulated step of a grid."""

    step: Simulated
    exact: bool
    """Whether the whole network was traced."""
    cached_blocks: int
    """As the overlap came out."""
    timeline_layers: int | None = None
    """Layers of the network that the timeline shows."""


@dataclass(slots=True)
class _Player:
    machine: MachineModel
    grid: Grid
    now_s: float = 0.0
    compute_s: float = 0.0
    hidden_s: float = 0.0
    flying: list[_Flight] = field(default_factory=list)
    queues: dict[str, deque[_Flight]] = field(default_factory=lambda: defaultdict(deque))
    issued: list[_Flight] = field(default_factory=list)
    exposed_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def compute(self, work_s: float) -> None:
        """Do work that takes so many seconds on a device that does nothing else."""
        self.compute_s += self._work(work_s, hides=True)

    def _work(self, work_s: float, *, hides: bool) -> float:
        """Do the work and return how long it took. hides: whether it hides what is in flight meanwhile."""
        start_s = self.now_s
        slowdown = 1 + self.machine.fitted.slowdown
        while work_s > 0:
            if not self.flying:
                self._pass(work_s)
                break
            sharing = self._sharing()
            taken = sum(flight.share / sharing[flight.between_nodes] for flight in self.flying)
            speed = min(1.0, FAIR / taken) if taken else 1.0
            slower = slowdown / (1 - taken * speed)
            step_s = min(self._next_end_s() / speed, work_s * slower)
            work_s -= step_s / slower
            if hides:
                self.hidden_s += step_s
                for flight in self.flying:
                    flight.hidden_s += step_s
            self._pass(step_s, speed)
            if work_s < END_S:
                break
        return self.now_s - start_s

    def issue(self, event: Issue) -> None:
        """Start a collective, or let it queue on its lane."""
        axis = AXIS_OF_LANE[event.lane]
        seconds = processor_s = 0.0
        if event.kind not in POINT_TO_POINT:
            what = (event.kind, event.num_bytes, self.grid, axis)
            processor_s = self.machine.processor_s(*what)
            seconds = max(self.machine.collective_s(*what), processor_s)
        between = self.machine.bandwidths.leaves_node(self.grid, axis)
        share = processor_s / seconds if seconds else 0.0
        flight = _Flight(event, axis, seconds, self.now_s, between, share, own=share > 0 and not between)
        self.issued.append(flight)
        queue = self.queues[event.lane]
        queue.append(flight)
        if len(queue) == 1 and not flight.own:
            self._start(flight)

    def wait(self, event: Wait) -> tuple[_Flight, float]:
        """Stand still until a collective is over; return it, and when the wait began."""
        flight, start_s = self.issued[-event.back], self.now_s
        while flight.end_s is None:
            if flight.own:
                self._carry_out(self.queues[flight.event.lane][0])
            else:
                self._pass(self._next_end_s())
        self.exposed_s[flight.axis] += self.now_s - start_s
        return flight, start_s

    def _carry_out(self, flight: _Flight) -> None:
        """Have the rank itself carry out the first collective of a lane."""
        flight.start_s = self.now_s
        self._work(flight.left_s, hides=False)
        flight.end_s = self.now_s
        self.queues[flight.event.lane].popleft()

    def _next_end_s(self) -> float:
        """Give the seconds until the first of those in flight is over, if nothing else begins."""
        sharing = self._sharing()
        return min(flight.left_s * sharing[flight.between_nodes] for flight in self.flying)

    def _sharing(self) -> tuple[int, int]:
        """Count those in flight within nodes and between them."""
        between = sum(flight.between_nodes for flight in self.flying)
        return len(self.flying) - between, between

    def _pass(self, seconds: float, speed: float = 1.0) -> None:
        """Let time go by; those in flight advance at this speed."""
        self.now_s += seconds
        if not self.flying:
            return
        sharing = self._sharing()
        for flight in self.flying:
            flight.left_s -= seconds * speed / sharing[flight.between_nodes]
        for flight in [flight for flight in self.flying if flight.left_s <= END_S]:
            self.flying.remove(flight)
            flight.end_s = self.now_s
            queue = self.queues[flight.event.lane]
            queue.popleft()
            if queue:
                self._start(queue[0])

    def _start(self, flight: _Flight) -> None:
        flight.start_s = self.now_s
        self.flying.append(flight)


def simulate(trace: Trace, machine: MachineModel, *, timeline: bool = False) -> Simulated:
    """Play one step. timeline: whether to say what runs when."""
    grid = Grid.parse(trace.about["grid"])
    player = _Player(machine, grid)
    spans: list[Span] = []
    marks: list[tuple[str, float]] = []
    for event in trace:
        match event:
            case Issue():
                player.issue(event)
            case Wait():
                flight, start_s = player.wait(event)
                if timeline:
                    name = f"{flight.event.kind} {flight.axis}"
                    spans.append(Span(lane="compute", kind="wait", name=name, start_s=start_s, end_s=player.now_s))
            case Mark():
                marks.append((event.phase, player.now_s))
            case _:
                player.compute(machine.compute_s(event))
    end_s = player.now_s
    phases: dict[str, float] = defaultdict(float)
    for (name, start_s), (_, stop_s) in pairwise([*marks, ("", end_s)]):
        phases[name] += stop_s - start_s
        if timeline:
            spans.append(Span(lane="compute", kind="phase", name=name, start_s=start_s, end_s=stop_s))
    hidden: dict[str, float] = defaultdict(float)
    for flight in player.issued:
        hidden[flight.axis] += flight.hidden_s
        if timeline and flight.start_s is not None:
            stop_s = end_s if flight.end_s is None else flight.end_s
            spans.append(
                Span(
                    lane=flight.event.lane,
                    kind="collective",
                    name=flight.event.kind,
                    start_s=flight.start_s,
                    end_s=stop_s,
                    issued_s=flight.issued_s,
                )
            )
    spread = machine.fitted.spread
    return Simulated(
        time_s=end_s,
        low_s=end_s / (1 + spread),
        high_s=end_s * (1 + spread),
        compute_s=player.compute_s,
        hidden_s=player.hidden_s,
        exposed_s=dict(player.exposed_s),
        hidden_by_axis_s=dict(hidden),
        phases_s=dict(phases),
        peak_bytes=trace.peak_bytes,
        timeline=Timeline(iteration=0, step_s=end_s, spans=tuple(spans)) if timeline else None,
    )
