"""What ran in a profiled step, in the recorder's terms, and the figures that follow. No torch."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from engine.measure.intervals import Interval, common, covered, length, union
from engine.profiling.names import Region, kind_and_lane, parsed
from engine.result.profile import LayerTime, OperationTime
from engine.result.step import AxisTime, LaneTime


@dataclass(frozen=True, slots=True)
class Flown:
    """A collective: from when its lane came to it until its result was there, and the wait for it."""

    what: str
    start: float
    done: float
    waited: float
    resumed: float

    @property
    def lane(self) -> str:
        """Its axis and lane."""
        return kind_and_lane(self.what)[1]

    @property
    def axis(self) -> str:
        """Of the grid."""
        return self.lane.partition(" ")[0]


@dataclass(slots=True)
class Sums:
    """How often something ran, and for how many seconds."""

    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass(slots=True)
class Ran:
    """A step from start to end. work: kernels or operators; copies: of memory; both may lie in each other and in waits.

    operations: kernels or operators by their names. layers: by the names of their regions. flights_as_noted: the same
    flights with the ends that the run noted, where these come late. lost: collectives of which there are no events.
    untraced: axes along which some began and ended when the run noted it, as no trace tells of them.
    """

    start: float
    end: float
    flights: list[Flown]
    work: list[Interval]
    copies: list[Interval]
    operations: Sums
    layers: Sums
    notes: list[str]
    flights_as_noted: list[Flown] = field(default_factory=list)
    lost: int = 0
    untraced: frozenset[str] = frozenset()

    @property
    def step_s(self) -> float:
        """Its length."""
        return self.end - self.start

    def _inside(self, intervals: Iterable[Interval]) -> tuple[Interval, ...]:
        return common(union(intervals), [(self.start, self.end)])

    @property
    def waits(self) -> tuple[Interval, ...]:
        """The times at which compute stands still for a collective."""
        return self._inside((f.waited, f.resumed) for f in self.flights)

    @property
    def exposed_s(self) -> float:
        """See step.Breakdown."""
        return length(self.waits)

    @property
    def hidden_s(self) -> float:
        """See step.Breakdown."""
        flights = self._inside((f.start, f.done) for f in self.flights)
        return length(flights) - length(common(flights, self.waits))

    def as_noted(self) -> "Ran | None":
        """The same step, had its collectives ended when the run noted it; None where that isn't told."""
        return replace(self, flights=self.flights_as_noted) if self.flights_as_noted else None

    @property
    def split(self) -> tuple[float, float, float]:
        """Compute in three parts: work, copies beside which there is none, and neither."""
        waits = self.waits
        work = length(union((*self._inside(self.work), *waits))) - length(waits)
        busy = length(union((*self._inside(self.work), *self._inside(self.copies), *waits)))
        return work, busy - work - length(waits), self.step_s - busy

    def axes(self) -> tuple[AxisTime, ...]:
        """Of those with collectives."""
        waits = self.waits
        return tuple(
            AxisTime(
                axis=axis,
                exposed_s=sum(f.resumed - f.waited for f in flights),
                hidden_s=sum(f.done - f.start - covered(f.start, f.done, waits) for f in flights),
            )
            for axis in sorted({f.axis for f in self.flights})
            for flights in [[f for f in self.flights if f.axis == axis]]
        )

    def lanes(self) -> tuple[LaneTime, ...]:
        """How long each has a collective in flight."""
        busy: dict[str, float] = defaultdict(float)
        for flight in self.flights:
            busy[flight.lane] += flight.done - flight.start
        return tuple(LaneTime(lane=lane, busy_s=busy_s) for lane, busy_s in sorted(busy.items()))

    def by_operation(self) -> tuple[OperationTime, ...]:
        """Those that take longest first."""
        sums = self.operations
        told = [OperationTime(name=name, calls=sums.calls[name], time_s=s) for name, s in sums.seconds.items()]
        return tuple(sorted(told, key=lambda operation: -operation.time_s))

    def by_layer(self) -> tuple[LayerTime, ...]:
        """Those that take longest first."""
        seconds = self.layers.seconds
        names = {found[1] for found in map(parsed, seconds) if found is not None}
        told = [
            LayerTime(
                name=name,
                forward_s=seconds.get(Region.LAYER.of(name), 0.0),
                backward_s=seconds.get(Region.BACKWARD.of(name), 0.0),
            )
            for name in names
        ]
        return tuple(sorted(told, key=lambda layer: (-layer.forward_s - layer.backward_s, layer.name)))
