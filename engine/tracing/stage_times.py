"""The tasks of a stage are timed on a trace of its first rank, one micro-batch after the other, without its messages.

All stages between the first and the last are alike but for the number of their blocks. So three stages are traced, with
few blocks, and the middle one with more, too, as every block is like the one before it; and once more with some of
these cached, if any are. Where blocks differ, or only some are recomputed, every stage is traced as it is.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import NamedTuple, Self

from engine.grid import CUTTING_STAGES, Grid
from engine.overlap.tasks import Direction
from engine.pipeline.registry import PipelineOptions
from engine.result.schema.step import Span
from engine.simulator.events import Trace
from engine.simulator.machine import MachineModel
from engine.simulator.simulate import simulate
from engine.tracing.step import trace
from engine.training_record import Training

FEW, MORE = 1, 3
"""A stage is traced with so many blocks."""
FIRST, MIDDLE, LAST = range(3)
"""These stages stand for those of a pipeline of any length."""
TAIL = ("reduce", "optimizer")
TimesKind = tuple[bool, int]
"""The times of a stage's tasks depend on these: whether weight gradients are deferred, and the number of chunks."""


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Seconds of a stage."""

    tasks_s: Mapping[str, float]
    """Seconds of a pass's tasks, of all chunks, by direction."""
    tail_s: float
    """Seconds of the step's end."""
    exposed_s: Mapping[str, float]
    """Seconds that a pass exposes along each axis."""
    tail_exposed_s: Mapping[str, float]


Timed = Callable[[Trace], StageTimes]


class FewBlocks(NamedTuple):
    """Traces of few blocks that stand for whole stages."""

    blocks: Sequence[int]
    """Blocks of each stage."""
    few: Sequence[Trace]
    """Traces of the first, a middle and the last stage with FEW blocks."""
    more: Trace
    """Trace of a middle stage with MORE."""
    cached: Trace | None
    """Trace of the same, the additional blocks being cached; None if none is."""
    cached_blocks: int
    """Cached blocks of a stage."""

    def at(self, grid: Grid) -> Self:
        """Return the same on a grid of the same ranks in another order."""
        few, more = [_at(one, grid) for one in self.few], _at(self.more, grid)
        return self._replace(few=few, more=more, cached=self.cached and _at(self.cached, grid))

    def times(self, timed: Timed) -> list[StageTimes]:
        """Give the times of each stage."""
        few, more = [timed(one) for one in self.few], timed(self.more)
        cached = more if self.cached is None else timed(self.cached)
        last, found = len(self.blocks) - 1, []
        for stage, count in enumerate(self.blocks):
            kind = FIRST if stage == 0 else LAST if stage == last else MIDDLE
            whole = _added(few[kind], few[MIDDLE], more, count - FEW)
            found.append(_added(whole, more, cached, min(count, self.cached_blocks)))
        return found


class EachStage(NamedTuple):
    """Trace of every stage, the same one for stages that are alike."""

    traces: Sequence[Trace]

    def at(self, grid: Grid) -> Self:
        """Return the same on a grid of the same ranks in another order."""
        known = {id(one): _at(one, grid) for one in self.traces}
        return self._replace(traces=[known[id(one)] for one in self.traces])

    def times(self, timed: Timed) -> list[StageTimes]:
        """Give the times of each stage."""
        return [timed(one) for one in self.traces]


def _at(traced: Trace, grid: Grid) -> Trace:
    return replace(traced, about={**traced.about, "grid": str(grid)})


def count_blocks(training: Training, grid: Grid) -> tuple[int, ...]:
    """Count the blocks of each stage."""
    return tuple(sum(map(len, chunks)) for chunks in training.cut(grid).blocks)


def trace_few_blocks(
    training: Training, grid: Grid, of_kinds: Mapping[TimesKind, Training], cached: int
) -> dict[TimesKind, FewBlocks | EachStage]:
    """Trace stages of few blocks, for schedules of these kinds. cached: blocks of a stage."""
    found: dict[TimesKind, FewBlocks | EachStage] = {}
    for deferring in {deferring for deferring, _ in of_kinds}:
        of = partial(_trace_stage, training, grid, deferring=deferring)
        kept = of(MIDDLE, MORE, cached=MORE - FEW) if cached else None
        traces = [of(stage, FEW) for stage in (FIRST, MIDDLE, LAST)], of(MIDDLE, MORE), kept
        for (deferred, chunks), one in of_kinds.items():
            if deferred == deferring:
                found[deferred, chunks] = FewBlocks(count_blocks(one, grid), *traces, cached)
    return found


def least_pass_s(training: Training, grid: Grid, machine: MachineModel, cached: int) -> float:
    """Return the seconds that a middle stage takes for a micro-batch, from traces of few blocks of it alone."""
    trace = partial(_trace_stage, training, grid, MIDDLE, deferring=False)
    few, more = time_tasks(trace(FEW), machine), time_tasks(trace(MORE), machine)
    blocks = max(count_blocks(training, grid))
    whole = _added(few, few, more, blocks - FEW)
    if cached:
        whole = _added(whole, more, time_tasks(trace(MORE, cached=MORE - FEW), machine), min(blocks, cached))
    return sum(whole.tasks_s.values()) / machine.ranks_per_core


def trace_each_stage(
    grid: Grid, of_kinds: Mapping[TimesKind, Training], cached: int
) -> dict[TimesKind, FewBlocks | EachStage]:
    """Trace each stage of the real cuts, once of those that are alike, for schedules of these kinds."""
    found: dict[TimesKind, FewBlocks | EachStage] = {}
    for kind, one in of_kinds.items():
        network, cut = one.model.network(), one.cut(grid)
        one = replace(one, overlap=replace(one.overlap, cache=cached))
        known: dict[Hashable, Trace] = {}
        traces = []
        for stage, chunks in enumerate(cut.blocks):
            held = tuple(
                (
                    network.boundaries[blocks.start],
                    *((replace(network.blocks[n].section, first=0), n < one.recomputed_blocks) for n in blocks),
                )
                for blocks in chunks
            )
            like = stage == 0, stage == grid.stages - 1, held
            if like not in known:
                known[like] = trace(one, grid, stage * grid.stride(CUTTING_STAGES), one_by_one=True)
            traces.append(known[like])
        found[kind] = EachStage(traces)
    return found


@lru_cache(32)
def _trace_stage(training: Training, grid: Grid, stage: int, blocks: int, *, deferring: bool, cached: int = 0) -> Trace:
    """Trace the first rank of a stage of so many blocks, some of them cached, as if there were three stages."""
    three = [str(blocks)] * (LAST + 1)
    model = replace(training.model, layers=blocks * len(three))  # type: ignore[type-var]
    pipeline = PipelineOptions("zero-bubble" if deferring else "1f1b", stages=",".join(three))
    changed = replace(training, model=model, pipeline=pipeline, overlap=replace(training.overlap, cache=cached))
    rank = stage * grid.stride(CUTTING_STAGES)
    return _at(trace(changed, grid.sized({CUTTING_STAGES: len(three)}), rank, one_by_one=True), grid)


def _added(stage: StageTimes, one: StageTimes, other: StageTimes, blocks: int) -> StageTimes:
    """Give the times of a stage with something more of so many blocks: of MORE - FEW of them it makes the one's times
    the other's.
    """
    by = blocks / (MORE - FEW)

    def of(own: Mapping[str, float], one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
        found = {key: own.get(key, 0.0) + by * (other.get(key, 0.0) - one.get(key, 0.0)) for key in {**own, **other}}
        return {key: max(0.0, seconds) for key, seconds in found.items()}

    tail_s = max(0.0, stage.tail_s + by * (other.tail_s - one.tail_s))
    return StageTimes(
        of(stage.tasks_s, one.tasks_s, other.tasks_s),
        tail_s,
        of(stage.exposed_s, one.exposed_s, other.exposed_s),
        of(stage.tail_exposed_s, one.tail_exposed_s, other.tail_exposed_s),
    )


def time_tasks(traced: Trace, machine: MachineModel) -> StageTimes:
    """Time the middle one of a trace's passes, and its end, without messages between stages."""
    once = replace(traced, segments=[replace(segment, repeats=1) for segment in traced.segments])
    whole = simulate(once, machine, timeline=True)
    assert whole.timeline is not None
    spans = whole.timeline.spans
    phases = [span for span in spans if span.kind == "phase"]
    tail = [span for span in phases if span.name in TAIL]
    tasks = [span for span in phases if span.name in tuple(Direction)]
    passes = min(traced.micro_batches, 3)
    of_pass = len(tasks) // passes
    middle = tasks[(passes - 1) // 2 * of_pass :][:of_pass]
    found: dict[str, float] = defaultdict(float)
    for span in middle:
        found[span.name] += span.end_s - span.start_s

    def exposed(within: Sequence[Span]) -> dict[str, float]:
        waits: dict[str, float] = defaultdict(float)
        for wait in spans:
            if wait.kind == "wait" and any(span.start_s <= wait.start_s < span.end_s for span in within):
                waits[wait.name.split()[-1]] += wait.end_s - wait.start_s
        return dict(waits)

    return StageTimes(dict(found), sum(span.end_s - span.start_s for span in tail), exposed(middle), exposed(tail))
