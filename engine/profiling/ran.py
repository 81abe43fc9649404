"""A profiled step is described in the recorder's terms here, with the figures that follow. No torch."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from engine.measure.intervals import Interval, common, covered, length, union
from engine.profiling.names import Region, kind_and_lane, parsed
from engine.result.schema.profile import LayerTime, OperationTime
from engine.result.schema.step import AxisTime, LaneTime


@dataclass(frozen=True, slots=True)
class RanCollective:
    """It is a collective: from when its lane came to it until its result was there, and the wait for it."""

    what: str
    start: float
    done: float
    waited: float
    resumed: float

    @property
    def lane(self) -> str:
        """Name its lane as recordings do."""
        return kind_and_lane(self.what)[1]

    @property
    def axis(self) -> str:
        """Give its axis of the grid."""
        return self.lane.partition(" ")[0]


@dataclass(slots=True)
class Sums:
    """Sums say how often something ran, and for how many seconds."""

    calls: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass(slots=True)
class Ran:
    """It holds what ran in a step from start to end. work: kernels or operators; copies: of memory; both may lie in
    each other and in waits.

    operations: kernels or operators by their names. layers: by the names of their regions. collectives_as_noted: the
    same collectives with the ends that the run noted, where these come late. lost: collectives of which there are no
    events. untraced: axes along which some began and ended when the run noted it, as no trace has events of them.
    """

    start: float
    end: float
    collectives: list[RanCollective]
    work: list[Interval]
    copies: list[Interval]
    operations: Sums
    layers: Sums
    notes: list[str]
    collectives_as_noted: list[RanCollective] = field(default_factory=list)
    lost: int = 0
    untraced: frozenset[str] = frozenset()

    @property
    def step_s(self) -> float:
        return self.end - self.start

    def _inside(self, intervals: Iterable[Interval]) -> tuple[Interval, ...]:
        return common(union(intervals), [(self.start, self.end)])

    @property
    def waits(self) -> tuple[Interval, ...]:
        """Give the times at which compute stands still for a collective."""
        return self._inside((f.waited, f.resumed) for f in self.collectives)

    @property
    def exposed_s(self) -> float:
        """Give it as step.Breakdown defines it."""
        return length(self.waits)

    @property
    def hidden_s(self) -> float:
        """Give it as step.Breakdown defines it."""
        collectives = self._inside((f.start, f.done) for f in self.collectives)
        return length(collectives) - length(common(collectives, self.waits))

    def as_noted(self) -> "Ran | None":
        """Give the same step as if its collectives had ended when the run noted it; None where it didn't."""
        return replace(self, collectives=self.collectives_as_noted) if self.collectives_as_noted else None

    @property
    def split(self) -> tuple[float, float, float]:
        """Split compute in three parts: work, copies beside which there is none, and neither."""
        waits = self.waits
        work = length(union((*self._inside(self.work), *waits))) - length(waits)
        busy = length(union((*self._inside(self.work), *self._inside(self.copies), *waits)))
        return work, busy - work - length(waits), self.step_s - busy

    def axes(self) -> tuple[AxisTime, ...]:
        """Give the times of axes with collectives."""
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
        """Give for how long each lane has a collective in one."""
        busy: dict[str, float] = defaultdict(float)
        for one in self.collectives:
            busy[one.lane] += one.done - one.start
        return tuple(LaneTime(lane=lane, busy_s=busy_s) for lane, busy_s in sorted(busy.items()))

    def by_operation(self) -> tuple[OperationTime, ...]:
        """Give the times, the longest first."""
        sums = self.operations
        times = [OperationTime(name=name, calls=sums.calls[name], time_s=s) for name, s in sums.seconds.items()]
        return tuple(sorted(times, key=lambda operation: -operation.time_s))

    def by_layer(self) -> tuple[LayerTime, ...]:
        """Give the times, the longest first."""
        seconds = self.layers.seconds
        names = {found[1] for found in map(parsed, seconds) if found is not None}
        times = [
            LayerTime(
                name=name,
                forward_s=seconds.get(Region.LAYER.of(name), 0.0),
                backward_s=seconds.get(Region.BACKWARD.of(name), 0.0),
            )
            for name in names
        ]
        return tuple(sorted(times, key=lambda layer: (-layer.forward_s - layer.backward_s, layer.name)))
