"""The stages of a pipeline are traced, each alone, and played together on a machine by the schedule that drives them.

A stage's tasks are timed on its first rank, one micro-batch after the other, without its messages. All stages between
the first and the last are alike but for the number of their blocks. So three stages are traced, with few blocks, and
the middle one with more, too, as every block is like the one before it; and once more with some of these cached, if any
are.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from engine.footprint.allowed import allowed, named
from engine.footprint.memory import Footprint, Needs, blocks_cached
from engine.grid import CUTTING_STAGES, HOLDING, Grid
from engine.overlap.flags import AUTO
from engine.overlap.tasks import Direction, StepSchedule, Task, receiver, takes_message
from engine.pipeline.fastest import fastest
from engine.pipeline.options import PipelineOptions
from engine.pipeline.registry import ScheduleChoice
from engine.pipeline.simulation import PipelineStep, Times, Transit, play
from engine.simulator.events import Trace
from engine.simulator.machine import MachineModel, Message
from engine.simulator.simulate import Simulated, simulate
from engine.tracing.step import trace
from engine.training_record import Training

FEW, MORE = 1, 3
"""A stage is traced with so many blocks."""
FIRST, MIDDLE, LAST = range(3)
"""These stages stand for those of a pipeline of any length."""
TAIL = ("reduce", "optimizer")
WORD_BYTES = 24.0
"""The ranks of a stage tell each other of a task in so many."""


@dataclass(frozen=True, slots=True)
class _StageTimes:
    """It has the seconds of a pass's tasks on a stage, by direction and of all chunks, and of the step's end; and what
    a pass exposes along each axis.
    """

    tasks_s: Mapping[str, float]
    tail_s: float
    exposed_s: Mapping[str, float]


class _Traces(NamedTuple):
    """few: of the first, a middle and the last stage with FEW blocks. more: of a middle one with MORE. cached: of the
    same, those by which it has more being cached; None if none is.
    """

    few: Sequence[Trace]
    more: Trace
    cached: Trace | None


_TimesByKind = Mapping[tuple[bool, int], Sequence[_StageTimes]]


def _kind(schedule: StepSchedule) -> tuple[bool, int]:
    """Tell what the times of a stage's tasks depend on: whether weight gradients are deferred, and the cut."""
    return schedule.deferring, schedule.chunks


@dataclass(frozen=True, slots=True)
class TracedStages:
    """It holds what decides the time of a pipeline's step, on any machine.

    traces: by whether weight gradients are deferred. blocks: of each stage, by the number of its chunks. message_bytes:
    of the activations between two stages, on a rank. needs: memory of a rank by each schedule that may be taken.
    cached_blocks: of a stage, as many as each of these has room for.
    """

    training: Training
    grid: Grid
    traces: Mapping[bool, _Traces]
    blocks: Mapping[int, tuple[int, ...]]
    message_bytes: float
    needs: Mapping[ScheduleChoice, Needs]
    cached_blocks: int
    whole: None = None

    @property
    def drawn(self) -> int:
        """Count the layers of the traces."""
        return MORE * self.grid.stages

    def on(self, machine: MachineModel, *, timeline: bool = False) -> Simulated:
        """Simulate a step by the fastest schedule that the training allows. There is no timeline of it."""
        stages, passes, times = self.grid.stages, self.training.passes(self.grid), self._times_on(machine)
        allowed = {choice: choice.make() for choice in self.needs}
        choice, tasks_s = fastest(allowed, stages, passes, lambda one: self._task_times(one, times, machine))
        return self._simulated(choice, times[_kind(allowed[choice])], tasks_s, machine)

    def played(self, schedule: StepSchedule, passes: int, machine: MachineModel) -> PipelineStep:
        """Play all stages together."""
        return play(schedule, self.grid.stages, passes, self._task_times(schedule, self._times_on(machine), machine))

    def _times_on(self, machine: MachineModel) -> _TimesByKind:
        last, found = self.grid.stages - 1, {}
        kinds = [FIRST if stage == 0 else LAST if stage == last else MIDDLE for stage in range(last + 1)]
        for deferring, traces in self.traces.items():
            few, more = [_times(one, machine) for one in traces.few], _times(traces.more, machine)
            cached = more if traces.cached is None else _times(traces.cached, machine)
            for chunks, blocks in self.blocks.items():
                whole = [
                    _added(few[kind], few[MIDDLE], more, count - FEW) for kind, count in zip(kinds, blocks, strict=True)
                ]
                found[deferring, chunks] = [
                    _added(one, more, cached, min(count, self.cached_blocks))
                    for one, count in zip(whole, blocks, strict=True)
                ]
        return found

    def _task_times(self, schedule: StepSchedule, times: _TimesByKind, machine: MachineModel) -> Times:
        stages, count, agreeing_s = times[_kind(schedule)], self.grid.stages, self._agreeing_s(schedule, machine)
        to_next = [
            machine.message(self.message_bytes, self.grid, CUTTING_STAGES, stage, (stage + 1) % count)
            for stage in range(count)
        ]

        def sent(stage: int, task: Task) -> Message:
            return to_next[stage if task.direction is Direction.FORWARD else stage - 1]

        def taken(stage: int, task: Task) -> Message:
            return to_next[stage - 1 if task.direction is Direction.FORWARD else stage]

        def work_s(stage: int, task: Task) -> float:
            work_s = stages[stage].tasks_s.get(task.direction.value, 0.0) / schedule.chunks + agreeing_s
            if takes_message(stage, task, count, schedule.chunks):
                work_s += taken(stage, task).processor_s / 2
            if receiver(stage, task, count, schedule.chunks) is not None:
                work_s += sent(stage, task).processor_s / 2
            return work_s

        return Times(work_s, lambda stage, task: Transit(sent(stage, task).seconds, 0.0), machine.ranks_a_core)

    def _agreeing_s(self, schedule: StepSchedule, machine: MachineModel) -> float:
        """Give the seconds in which the ranks of a stage agree on a task, where it depends on what has come."""
        grid = self.grid
        if schedule.order(0, grid.stages, self.training.passes(grid)).known:
            return 0.0
        held = [axis for axis in HOLDING if grid[axis] > 1]
        return sum(sum(machine.message(WORD_BYTES, grid, axis, 0, grid[axis] - 1)) for axis in held)

    def _simulated(
        self, choice: ScheduleChoice, stages: Sequence[_StageTimes], tasks_s: float, machine: MachineModel
    ) -> Simulated:
        passes = self.training.passes(self.grid)
        busiest = max(stages, key=lambda stage: sum(stage.tasks_s.values()))
        time_s = tasks_s + max(stage.tail_s for stage in stages)
        worked_s = min(passes * sum(busiest.tasks_s.values()) + busiest.tail_s, time_s)
        exposed = {axis: passes * seconds for axis, seconds in busiest.exposed_s.items()}
        exposed[CUTTING_STAGES.value] = time_s - worked_s
        spread = machine.fitted.spread
        return Simulated(
            time_s=time_s,
            low_s=time_s / (1 + spread),
            high_s=time_s * (1 + spread),
            compute_s=time_s - sum(exposed.values()),
            hidden_s=0.0,
            exposed_s=exposed,
            hidden_by_axis_s={},
            phases_s={name: passes * seconds for name, seconds in busiest.tasks_s.items()},
            peak_bytes=round(self.needs[choice].total),
            schedule=str(choice),
        )


def traced_stages(training: Training, grid: Grid, device_memory: float | None = None) -> TracedStages:
    """Trace the first rank of the first, of a middle and of the last stage of a grid. device_memory: bytes, for as many
    passes as which has room.
    """
    if training.pipeline.schedule == AUTO:
        needs = allowed(training, grid, device_memory)
    else:
        needs = {training.staged(grid).choice: Footprint(training).on(grid)}
    by = {choice: named(training, choice) for choice in needs}
    cached = min(blocks_cached(one, grid, needs[choice].total, device_memory) for choice, one in by.items())

    def traces(*, deferring: bool) -> _Traces:
        of = partial(_traced, training, grid, deferring=deferring)
        kept = of(MIDDLE, MORE, cached=MORE - FEW) if cached else None
        return _Traces([of(stage, FEW) for stage in (FIRST, MIDDLE, LAST)], of(MIDDLE, MORE), kept)

    model = training.model
    rows = training.batch.at_once(grid) * model.sequence
    return TracedStages(
        training,
        grid,
        {deferring: traces(deferring=deferring) for deferring in {choice.make().deferring for choice in needs}},
        {choice.make().chunks: _blocks(one, grid) for choice, one in by.items()},
        rows * model.hidden / grid.plane * training.compute,
        needs,
        cached,
    )


def _blocks(training: Training, grid: Grid) -> tuple[int, ...]:
    return tuple(sum(map(len, chunks)) for chunks in training.cut(grid).blocks)


def _traced(training: Training, grid: Grid, stage: int, blocks: int, *, deferring: bool, cached: int = 0) -> Trace:
    """Trace the first rank of a stage of so many blocks, some of them cached, as if there were three stages."""
    three = [str(blocks)] * (LAST + 1)
    model = replace(training.model, layers=blocks * len(three))  # type: ignore[type-var]
    pipeline = PipelineOptions("zero-bubble" if deferring else "1f1b", stages=",".join(three))
    changed = replace(training, model=model, pipeline=pipeline, overlap=replace(training.overlap, cache=cached))
    found = trace(
        changed, grid.sized({CUTTING_STAGES: len(three)}), stage * grid.stride(CUTTING_STAGES), one_by_one=True
    )
    return replace(found, about={**found.about, "grid": str(grid)})


def _added(stage: _StageTimes, one: _StageTimes, other: _StageTimes, blocks: int) -> _StageTimes:
    """Give the times of a stage with something more of so many blocks: of MORE - FEW of them it makes the one's times
    the other's.
    """
    by = blocks / (MORE - FEW)

    def of(own: Mapping[str, float], one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
        found = {key: own.get(key, 0.0) + by * (other.get(key, 0.0) - one.get(key, 0.0)) for key in {**own, **other}}
        return {key: max(0.0, seconds) for key, seconds in found.items()}

    tail_s = max(0.0, stage.tail_s + by * (other.tail_s - one.tail_s))
    exposed_s = of(stage.exposed_s, one.exposed_s, other.exposed_s)
    return _StageTimes(of(stage.tasks_s, one.tasks_s, other.tasks_s), tail_s, exposed_s)


def _times(traced: Trace, machine: MachineModel) -> _StageTimes:
    """Time the middle one of a trace's passes, and its end, without messages between stages."""
    once = replace(traced, segments=[replace(segment, repeats=1) for segment in traced.segments])
    whole = simulate(once, machine, timeline=True)
    assert whole.timeline is not None
    phases = [span for span in whole.timeline.spans if span.kind == "phase"]
    tail_s = sum(span.end_s - span.start_s for span in phases if span.name in TAIL)
    tasks = [span for span in phases if span.name in tuple(Direction)]
    passes = min(traced.micro_batches, 3)
    of_pass = len(tasks) // passes
    middle = tasks[(passes - 1) // 2 * of_pass :][:of_pass]
    found: dict[str, float] = defaultdict(float)
    for span in middle:
        found[span.name] += span.end_s - span.start_s
    within = [span for span in whole.timeline.spans if span.kind == "wait"]
    start_s, end_s = middle[0].start_s, middle[-1].end_s
    exposed: dict[str, float] = defaultdict(float)
    for span in within:
        if start_s <= span.start_s < end_s:
            exposed[span.name.split()[-1]] += span.end_s - span.start_s
    return _StageTimes(dict(found), tail_s, dict(exposed))
