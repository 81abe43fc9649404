"""One step of a small GPT on a 4D grid as its schedule would run it, worked out by hand instead of measured.

Compute is one lane, each kind of communication another; every collective begins when it is issued or when its lane is
free, and compute stands still where it needs a result that isn't there. Four blocks of four weights with activation
checkpointing: on 2x2x2x1 96 collectives in 2.5 s, half of it exposed without overlap.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.measure.intervals import Interval, common, union
from engine.result import metrics
from engine.result.schema.step import AxisTime, Bound, Breakdown, LaneTime, MachineUsage, Phase, Span, Timeline

BLOCKS, WEIGHTS = 4, 4
MATMUL, GATHER, REDUCE, PARTIAL, DATA, ISSUE = 0.0238, 0.0140, 0.0140, 0.0124, 0.012, 0.001


@dataclass
class Step:
    """The step as far as it has run; times in seconds."""

    drawn: bool = True
    length: float = 0.0
    spans: list[Span] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    phases: dict[str, dict[str, float]] = field(default_factory=dict)
    exposed: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    lanes: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def phase(self, name: str) -> None:
        self._close()
        self.phases[name] = {"compute_s": 0.0, "blocking_s": 0.0, "exposed_s": 0.0, "start": self.length}

    def compute(self, seconds: float) -> None:
        self.length += seconds
        self._now["compute_s"] += seconds

    def issue(self, lane: str, name: str, seconds: float) -> tuple[str, float]:
        """Start a collective; returns what to wait for."""
        self.compute(ISSUE)
        start = max(self.length, self.lanes[lane])
        self.lanes[lane] = start + seconds
        self.spans.append(Span(lane=lane, kind="collective", name=name, start_s=start, end_s=start + seconds))
        return lane, start + seconds

    def wait(self, handle: tuple[str, float], *, blocking: bool = False) -> None:
        """Stand still until the collective has ended."""
        lane, end = handle
        if end > self.length:
            self.spans.append(Span(lane="compute", kind="wait", name=lane, start_s=self.length, end_s=end))
            self.exposed[lane.split(" ")[0]] += end - self.length
            self._now["blocking_s" if blocking else "exposed_s"] += end - self.length
            self.length = end

    def breakdown(self, time_s: float, machine: MachineUsage | None = None) -> Breakdown:
        """The parts of a step that took so long in all, on accelerators or on this machine."""
        scale = time_s / self.length
        waited = sum(self.exposed.values())
        by_axis, by_phase = self._hidden()
        keys = ("compute_s", "blocking_s", "exposed_s")
        hidden_s = sum(by_phase.values()) * scale
        lanes = tuple(LaneTime(lane=lane, busy_s=busy * scale) for lane, busy in self._busy().items())
        longest = max(lanes, key=lambda lane: lane.busy_s, default=LaneTime(lane="", busy_s=0.0))
        bound_s = metrics.bound((self.length - waited) * scale, longest.busy_s)
        by = longest.lane if bound_s <= longest.busy_s else "compute"
        if machine and machine.shared:
            link_s = machine.link_bytes / (machine.link_bytes_per_s or math.inf)
            bound_s = metrics.bound_on_shared_cores(machine.processor_s, machine.cores, link_s)
            by = "link" if bound_s <= link_s else "processors"
        return Breakdown(
            compute_s=(self.length - waited) * scale,
            collectives_s=waited * scale,
            hidden_s=hidden_s,
            share_hidden=metrics.share_hidden(hidden_s, waited * scale),
            lanes=lanes,
            machine=machine,
            bound=Bound(bound_s=bound_s, by=by, step_by_bound=metrics.step_by_bound(time_s, bound_s)),
            axes=tuple(
                AxisTime(axis=axis, exposed_s=self.exposed[axis] * scale, hidden_s=hidden * scale)
                for axis, hidden in by_axis.items()
            ),
            phases=tuple(
                Phase(name=name, hidden_s=by_phase[name] * scale, **{key: parts[key] * scale for key in keys})
                for name, parts in self.phases.items()
            ),
        )

    def timeline(self, time_s: float) -> Timeline:
        """Return the timeline of a step of this length."""
        scale = time_s / self.length
        spans = [s.model_copy(update={"start_s": s.start_s * scale, "end_s": s.end_s * scale}) for s in self.spans]
        return Timeline(iteration=9, step_s=time_s, spans=tuple(spans))

    def _busy(self) -> dict[str, float]:
        """How long each lane has a collective in flight."""
        flights = [span for span in self.spans if span.kind == "collective"]
        return {
            lane: _length(union([(span.start_s, span.end_s) for span in flights if span.lane == lane]))
            for lane in dict.fromkeys(span.lane for span in flights)
        }

    def _hidden(self) -> tuple[dict[str, float], dict[str, float]]:
        """Flight while the rank computes: by axis summed, by phase each moment once."""
        by_axis = defaultdict[str, float](float)
        waits = [(span.start_s, span.end_s) for span in self.spans if span.kind == "wait"]
        for span in self.spans:
            if span.kind != "collective":
                continue
            behind = span.end_s - span.start_s
            behind -= sum(max(0.0, min(span.end_s, end) - max(span.start_s, start)) for start, end in waits)
            by_axis[span.lane.split(" ")[0]] += behind
        flights = union([(span.start_s, span.end_s) for span in self.spans if span.kind == "collective"])
        phases = [span for span in self.spans if span.kind == "phase"]
        by_phase = {}
        for phase in phases:
            during = common(flights, [(phase.start_s, phase.end_s)])
            by_phase[phase.name] = _length(during) - _length(common(during, union(waits)))
        return by_axis, by_phase

    @property
    def _now(self) -> dict[str, float]:
        return list(self.phases.values())[-1]

    def _close(self) -> None:
        if self.phases:
            name, start = list(self.phases)[-1], self._now["start"]
            self.spans.append(Span(lane="compute", kind="phase", name=name, start_s=start, end_s=self.length))


def _length(intervals: Sequence[Interval]) -> float:
    return sum(end - start for start, end in intervals)


def simulate(overlap: str, grid: str = "2x2x2x1", *, drawn: bool = True) -> Step:
    """A step under these flags."""
    flags = {word.partition("=")[0] for word in overlap.split(",")}
    x, y, z, data = (int(size) > 1 for size in grid.split("x"))
    step = Step(drawn=drawn)
    order = [("gather", n) for n in range(BLOCKS * WEIGHTS)]
    for block in reversed(range(BLOCKS)):
        if "cache" not in flags:
            order += [("again", block * WEIGHTS + n) for n in range(WEIGHTS)]
    ahead: dict[tuple[str, int], tuple[str, float]] = {}

    def gather(key: tuple[str, int]) -> None:
        if not z or key not in order:
            return
        place = order.index(key)
        for next_one in order[place : place + (3 if "oag" in flags else 1)]:
            if next_one not in ahead:
                ahead[next_one] = step.issue("z gather", "all_gather", GATHER)
        step.wait(ahead[key])

    def multiply(n: int) -> None:
        step.compute(MATMUL)
        axis = "xy"[n % 2]
        if (x, y)[n % 2]:
            step.wait(step.issue(axis, "all_reduce", PARTIAL), blocking=True)

    step.phase("forward")
    for n in range(BLOCKS * WEIGHTS):
        gather(("gather", n))
        multiply(n)
    step.phase("backward")
    late = []
    for block in reversed(range(BLOCKS)):
        for n in range(block * WEIGHTS, (block + 1) * WEIGHTS):
            gather(("again", n))
            multiply(n)
        for n in reversed(range(block * WEIGHTS, (block + 1) * WEIGHTS)):
            step.compute(MATMUL / 2)
            partial = step.issue("yx"[n % 2], "all_reduce", PARTIAL) if (y, x)[n % 2] else None
            if partial and "oar" not in flags:
                step.wait(partial)
            step.compute(MATMUL / 2)
            if partial and "oar" in flags:
                step.wait(partial)
            if z:
                late.append(step.issue("z", "reduce_scatter", REDUCE))
                if "ors" not in flags:
                    step.wait(late.pop())
            if data and "data" in flags:
                step.issue("data", "all_reduce", DATA)
    step.phase("reduce")
    for handle in late:
        step.wait(handle)
    if data:
        if "data" not in flags:
            step.issue("data", "all_reduce", DATA * BLOCKS * WEIGHTS)
        step.wait(("data", step.lanes["data"]))
    step.phase("optimizer")
    step.compute(0.02)
    step._close()
    blocks = BLOCKS if "cache" in flags and z else 0
    step.memory = {
        "prefetch_bytes": 3 * 590_000 if "oag" in flags and z else 0,
        "cached_blocks": blocks,
        "cache_bytes": blocks * 4_720_000,
    }
    return step
