"""Profiled step in the recorder's terms, with the figures that follow, read from its trace. No torch.

On processors: operators of the rank's thread, gloo's events on its threads, and waits for them. On a GPU: kernels and
copies by stream. The recorder's events on the computing stream are found again from kernels: a wait begins when the
stream has done all that it was given before, and not before the host asks for it; it ends with the collective's last
kernel. No GPU has run this yet.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from engine.measure.intervals import Interval, common, covered, length, union
from engine.profiling.trace import (
    Event,
    Piece,
    ProfiledStep,
    Region,
    TraceError,
    at,
    innermost,
    kind_and_lane,
    parse_region,
)
from engine.result.schema.profile import LayerTime, OperationTime
from engine.result.schema.step import AxisTime, LaneTime

GLOO = {
    "all_gather": "gloo:all_gather",
    "all_reduce": "gloo:all_reduce",
    "max_reduce": "gloo:all_reduce",
    "reduce_scatter": "gloo:all_to_all",
}
"""gloo's event of each kind of collective (engine/comm/gloo.py). The others don't say when they end."""
COPIES = ("aten::copy_", "aten::_foreach_copy_")
NO_IDLE = (
    "A trace of CPUs can't tell idle from Python: what is outside operators is the interpreter's own time, autograd's "
    "between two operators, and other processes' turns on the core."
)
LOST = "The trace lacks events of {} collectives, though it has {}: it is not whole."
KERNEL = "kernel"
DEVICE_COPIES = ("gpu_memcpy", "gpu_memset")
LAUNCHES = ("cuda_runtime", "cuda_driver")
NO_KERNELS = "The trace has no kernels of {} of {} collectives: they count as taking no time."


@dataclass(frozen=True, slots=True)
class RanCollective:
    """Collective, from when its lane came to it until its result was there, and the wait for it."""

    what: str
    start: float
    done: float
    waited: float
    resumed: float

    @property
    def lane(self) -> str:
        """Lane, as recordings name it."""
        return kind_and_lane(self.what)[1]

    @property
    def axis(self) -> str:
        """Axis of the grid."""
        return self.lane.partition(" ")[0]


@dataclass(slots=True)
class Sums:
    """Calls of what ran, and its seconds, by name."""

    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass(slots=True)
class Ran:
    """Step from start to end with all that ran in it; intervals may lie in each other and in waits."""

    start: float
    end: float
    collectives: list[RanCollective]
    work: list[Interval]
    """Kernels or operators."""
    copies: list[Interval]
    """Copies of memory."""
    operations: Sums
    """Kernels or operators by their names."""
    layers: Sums
    """By the names of their regions."""
    notes: list[str]
    collectives_as_noted: list[RanCollective] = field(default_factory=list)
    """The same collectives with the ends that the run noted, where these come late."""
    lost: int = 0
    """Collectives of which there are no events."""

    @property
    def step_s(self) -> float:
        return self.end - self.start

    def _inside(self, intervals: Iterable[Interval]) -> tuple[Interval, ...]:
        return common(union(intervals), [(self.start, self.end)])

    @property
    def waits(self) -> tuple[Interval, ...]:
        """Times at which compute stands still for a collective."""
        return self._inside((f.waited, f.resumed) for f in self.collectives)

    @property
    def exposed_s(self) -> float:
        """Exposed communication, as step.Breakdown defines it."""
        return length(self.waits)

    @property
    def hidden_s(self) -> float:
        """Hidden communication, as step.Breakdown defines it."""
        collectives = self._inside((f.start, f.done) for f in self.collectives)
        return length(collectives) - length(common(collectives, self.waits))

    def as_noted(self) -> "Ran | None":
        """Return the same step as if its collectives had ended when the run noted it; None where it didn't."""
        return replace(self, collectives=self.collectives_as_noted) if self.collectives_as_noted else None

    @property
    def split(self) -> tuple[float, float, float]:
        """Three parts of compute: work, copies beside which there is none, and neither."""
        waits = self.waits
        work = length(union((*self._inside(self.work), *waits))) - length(waits)
        busy = length(union((*self._inside(self.work), *self._inside(self.copies), *waits)))
        return work, busy - work - length(waits), self.step_s - busy

    def axes(self) -> tuple[AxisTime, ...]:
        """Return the times of axes with collectives."""
        waits = self.waits
        return tuple(
            AxisTime(
                axis=axis,
                exposed_s=sum(f.resumed - f.waited for f in collectives),
                hidden_s=sum(f.done - f.start - covered(f.start, f.done, waits) for f in collectives),
            )
            for axis in sorted({f.axis for f in self.collectives})
            for collectives in [[f for f in self.collectives if f.axis == axis]]
        )

    def lanes(self) -> tuple[LaneTime, ...]:
        """Return for how long each lane is busy."""
        busy: dict[str, float] = defaultdict(float)
        for one in self.collectives:
            busy[one.lane] += one.done - one.start
        return tuple(LaneTime(lane=lane, busy_s=busy_s) for lane, busy_s in sorted(busy.items()))

    def by_operation(self) -> tuple[OperationTime, ...]:
        """List the times, the longest first."""
        sums = self.operations
        times = [OperationTime(name=name, calls=sums.calls[name], time_s=s) for name, s in sums.seconds.items()]
        return tuple(sorted(times, key=lambda operation: -operation.time_s))

    def by_layer(self) -> tuple[LayerTime, ...]:
        """List the times, the longest first."""
        seconds = self.layers.seconds
        names = {region[1] for region in map(parse_region, seconds) if region is not None}

        def of(kind: Region, name: str) -> float:
            return seconds.get(kind.name_of(name), 0.0)

        times = [
            LayerTime(name=name, forward_s=of(Region.LAYER, name), backward_s=of(Region.BACKWARD, name))
            for name in names
        ]
        return tuple(sorted(times, key=lambda layer: (-layer.forward_s - layer.backward_s, layer.name)))


def read_step(step: ProfiledStep) -> Ran:
    """Find what ran in the step. Raises TraceError for a trace of a GPU without kernels."""
    return read_on_device(step) if step.about.device == "cuda" else read_on_host(step)


def read_on_host(step: ProfiledStep) -> Ran:
    """Find what ran in a step on processors."""
    region = step.region
    operators = [event for event in step.of("cpu_op") if event.row == region.row]
    waits = dict(step.regions(Region.WAIT))
    standing = union((event.start, event.end) for event in waits.values())
    work: list[Interval] = []
    copies: list[Interval] = []
    operations, layers = Sums(), Sums()
    for operator in operators:
        operations.calls[operator.name] += 1
    for start, end, event in innermost(operators):
        (copies if event.name in COPIES else work).append((start, end))
        operations.seconds[event.name] += end - start - covered(start, end, standing)
    for start, end, event in innermost([event for _, event in step.regions(Region.LAYER, Region.BACKWARD)]):
        layers.seconds[event.name] += end - start - covered(start, end, standing)
    # The collectives as the run noted them itself, in the order of their issue.
    noted = sorted(step.of("collective"), key=lambda event: float(event.args["issued_us"]))
    collectives, lost = _collectives_on_host(step, waits, noted)
    as_noted: list[RanCollective] = []
    if len(noted) == len(collectives):
        ends = zip(collectives, noted, strict=True)
        as_noted = [replace(f, done=min(max(event.end, f.done), f.resumed)) for f, event in ends]
    elif noted:
        lost = max(lost, abs(len(noted) - len(collectives)))
    notes = [NO_IDLE, *[LOST.format(lost, len(collectives))] * bool(lost)]
    return Ran(region.start, region.end, collectives, work, copies, operations, layers, notes, as_noted, lost)


def _collectives_on_host(
    step: ProfiledStep, waits: dict[str, Event], noted: list[Event]
) -> tuple[list[RanCollective], int]:
    """Find the collectives as the recorder has them: from when each was issued, or the one before it on its lane ended,
    to gloo's end of it; and count those of which gloo has no event.

    gloo's events don't say whose they are: of each sort the first that begins after an issue is taken to be its. One
    that gloo has no event of began and ended when the run noted it.
    """
    carried: dict[str, deque[Event]] = defaultdict(deque)
    for event in step.of("user_annotation"):
        carried[event.name].append(event)
    collectives: list[RanCollective] = []
    lane_free: dict[str, float] = {}
    issues, lost = list(step.regions(Region.ISSUE)), 0
    own = noted if len(noted) == len(issues) else [step.region] * len(issues)
    for (what, issue), of_run in zip(issues, own, strict=True):
        kind, lane = kind_and_lane(what)
        left = carried[GLOO.get(kind, "")]
        while left and left[0].start < issue.start:
            left.popleft()
        wait = waits.get(what)
        waited, resumed = (wait.start, wait.end) if wait is not None else (step.region.end, step.region.end)
        gloos = left.popleft() if left and left[0].start <= resumed else None
        lost += kind in GLOO and gloos is None
        done = min((gloos or of_run).end, resumed)
        start = min(done, max(issue.start if gloos else of_run.start, lane_free.get(lane, issue.start)))
        lane_free[lane] = done
        collectives.append(RanCollective(what, start, done, waited, resumed))
    return collectives, lost


def read_on_device(step: ProfiledStep) -> Ran:
    """Find what ran in the step. Raises TraceError for a trace without kernels."""
    launched_here = _list_launched(step)
    if not launched_here:
        raise TraceError(
            "The trace has no kernels with their launches, though it is of a GPU: the profiler had no access to it "
            "(another profiler, or the driver's restriction), or this PyTorch doesn't tell. Take it once more."
        )
    launched = _innermost_by_row(step, Region.LAUNCH)
    in_layers = _innermost_by_row(step, Region.LAYER, Region.BACKWARD)
    carried: dict[str, list[Event]] = defaultdict(list)
    own: list[tuple[Event, Event]] = []
    operations, layers = Sums(), Sums()
    for launch, event in launched_here:
        operations.calls[event.name] += 1
        operations.seconds[event.name] += event.end - event.start
        collective = at(launched[launch.row], launch.start)
        if collective is not None:
            carried[collective.name].append(event)
            continue
        own.append((launch, event))
        layer = at(in_layers[launch.row], launch.start)
        if layer is not None:
            layers.seconds[layer.name] += event.end - event.start
    work = [(event.start, event.end) for _, event in own if event.category == KERNEL]
    copies = [(event.start, event.end) for _, event in own if event.category in DEVICE_COPIES]
    computing = _busiest(own)
    on_it = [(launch, event) for launch, event in launched_here if event.row == computing]
    collectives, lost = _collectives_on_device(step, carried, on_it)
    notes = [NO_KERNELS.format(lost, len(collectives))] * bool(lost)
    ends = [event.end for _, event in on_it] + [one.resumed for one in collectives]
    return Ran(step.region.start, max(ends), collectives, work, copies, operations, layers, notes, lost=lost)


def _list_launched(step: ProfiledStep) -> list[tuple[Event, Event]]:
    """List what the host launched, in that order: the call that launched it, and what then ran."""
    launches = {event.args.get("correlation"): event for event in step.of(*LAUNCHES)}
    events = [(launches.get(event.args.get("correlation")), event) for event in step.of(KERNEL, *DEVICE_COPIES)]
    return sorted(((launch, event) for launch, event in events if launch), key=lambda pair: pair[0].start)


def _innermost_by_row(step: ProfiledStep, *kinds: Region) -> dict[tuple[Any, Any], list[Piece]]:
    by_row: dict[tuple[Any, Any], list[Event]] = defaultdict(list)
    for _, event in step.regions(*kinds):
        by_row[event.row].append(event)
    return defaultdict(list, {row: innermost(events) for row, events in by_row.items()})


def _busiest(own: list[tuple[Event, Event]]) -> tuple[Any, Any] | None:
    """Find the stream that computes: the one whose kernels take longest."""
    seconds: dict[tuple[Any, Any], float] = defaultdict(float)
    for _, event in own:
        seconds[event.row] += event.end - event.start
    return max(seconds, key=lambda row: seconds[row], default=None)


def _collectives_on_device(
    step: ProfiledStep, carried: dict[str, list[Event]], on_it: list[tuple[Event, Event]]
) -> tuple[list[RanCollective], int]:
    """Find collectives by their kernels, and waits of the computing stream, on which on_it ran; count those without."""
    waits = sorted(step.regions(Region.WAIT), key=lambda wait: wait[1].start)
    collectives = []
    free, left, lost = step.region.start, 0, 0
    for what, wait in waits:
        while left < len(on_it) and on_it[left][0].start < wait.start:
            free = max(free, on_it[left][1].end)
            left += 1
        waited = max(free, wait.start)
        kernels = carried[Region.LAUNCH.name_of(what)]
        lost += not kernels
        begun = min((event.start for event in kernels), default=waited)
        done = max((event.end for event in kernels), default=waited)
        free = max(waited, done)
        collectives.append(RanCollective(what, begun, done, waited, free))
    return collectives, lost
