"""Profiled step in the recorder's terms, with the figures that follow. No torch."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from engine.measure.pending import Interval, common, covered, length, union
from engine.profiling.trace import Region, kind_and_lane, parse_region
from engine.result.schema.profile import LayerTime, OperationTime
from engine.result.schema.step import AxisTime, LaneTime


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
    """Of memory."""
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
