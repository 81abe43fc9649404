"""The stages of a pipeline are played together on a machine, by the schedule that drives the engine, too.

Their tasks are timed on traces of each stage alone (stage_times.py).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from statistics import fmean

from engine.footprint.fit import fastest_by_flops, list_schedules, with_schedule
from engine.footprint.memory import Footprint, Needs, blocks_cached
from engine.grid import CUTTING_STAGES, HOLDING, Grid
from engine.overlap.flags import AUTO
from engine.overlap.tasks import Direction, StageTask, StepSchedule, receiver, takes_message
from engine.pipeline.registry import ScheduleChoice
from engine.pipeline.simulation import PipelineStep, Times, Transit, play
from engine.pipeline.staged import StepTime, fastest
from engine.simulator.events import Trace
from engine.simulator.machine import MachineModel, Message
from engine.simulator.simulate import Simulated
from engine.tracing.stage_times import (
    LAST,
    MORE,
    EachStage,
    FewBlocks,
    StageTimes,
    TimesKind,
    count_blocks,
    least_pass_s,
    time_tasks,
    trace_each_stage,
    trace_few_blocks,
)
from engine.training_record import Training

SURELY = 0.95
"""Share of the time of a stage that no schedule undercuts: deferred weight gradients change it a little."""
WORD_BYTES = 24.0
"""The ranks of a stage tell each other of a task in so many."""
_TimesByKind = Mapping[TimesKind, Sequence[StageTimes]]


def _kind(schedule: StepSchedule) -> TimesKind:
    """Tell what the times of a stage's tasks depend on: whether weight gradients are deferred, and the cut."""
    return schedule.deferring, schedule.chunks


@dataclass(frozen=True, slots=True)
class TracedStages:
    """Traces that decide the time of a pipeline's step, on any machine."""

    training: Training
    grid: Grid
    traces: Mapping[TimesKind, FewBlocks | EachStage]
    """Traces of each stage, or of few that stand for all, by the kind of a schedule."""
    blocks: Mapping[int, tuple[int, ...]]
    """Blocks of each stage, by the number of its chunks."""
    message_bytes: Mapping[int, Sequence[float]]
    """Bytes of a rank's messages between chunks, or its input before the first, in the network's order, by the same."""
    needs: Mapping[ScheduleChoice, Needs]
    """Memory of a rank by each schedule that may be taken."""
    cached_blocks: int
    """Cached blocks of a stage, as many as each of these has room for."""
    drawn: int
    """Layers of the traces."""
    whole: bool = False

    def on(self, machine: MachineModel, *, timeline: bool = False, by_s: float = inf) -> Simulated:
        """Simulate a step by the fastest schedule that the training allows. There is no timeline of it.

        by_s: a step that takes longer for sure, in seconds, is played no further, and takes infinitely long.
        """
        if not self.needs:
            return Simulated.never()
        stages, passes, times = self.grid.stages, self.training.passes(self.grid), self._times_on(machine)
        allowed = {choice: choice.make() for choice in self.needs}
        choice, step = fastest(allowed, stages, passes, lambda one: self._task_times(one, times, machine), by_s)
        if step.time_s == inf:
            return Simulated.never()
        return self._simulated(choice, times[_kind(allowed[choice])], step, machine)

    def at(self, grid: Grid) -> "TracedStages":
        """Return the same traces on a grid of the same ranks in another order."""
        traces = {kind: of.at(grid) for kind, of in self.traces.items()}
        return replace(self, grid=grid, traces=traces)

    def training_of(self, step: Simulated) -> Training:
        """Return the training with the schedule of a simulated step."""
        assert step.schedule is not None
        return with_schedule(self.training, ScheduleChoice.parse(step.schedule))

    def played(self, schedule: StepSchedule, passes: int, machine: MachineModel) -> PipelineStep:
        """Play all stages together."""
        return play(schedule, self.grid.stages, passes, self._task_times(schedule, self._times_on(machine), machine))

    def _times_on(self, machine: MachineModel) -> _TimesByKind:
        known: dict[int, StageTimes] = {}

        def timed(one: Trace) -> StageTimes:
            if id(one) not in known:
                known[id(one)] = time_tasks(one, machine)
            return known[id(one)]

        return {kind: of.times(timed) for kind, of in self.traces.items()}

    def _task_times(self, schedule: StepSchedule, times: _TimesByKind, machine: MachineModel) -> Times:
        stages, count, agreeing_s = times[_kind(schedule)], self.grid.stages, self._agreeing_s(schedule, machine)
        message_bytes = self.message_bytes[schedule.chunks]
        before = [
            machine.message(num_bytes, self.grid, CUTTING_STAGES, (place - 1) % count, place % count)
            for place, num_bytes in enumerate(message_bytes)
        ]
        """Messages between each chunk and the one before it."""

        def sent(stage: int, task: StageTask) -> Message:
            return before[task.chunk * count + stage + (task.direction is Direction.FORWARD)]

        def taken(stage: int, task: StageTask) -> Message:
            return before[task.chunk * count + stage + (task.direction is not Direction.FORWARD)]

        def work_s(stage: int, task: StageTask) -> float:
            # Every chunk counts as an equal part of its stage, which those of unlike blocks aren't.
            work_s = stages[stage].tasks_s.get(task.direction.value, 0.0) / schedule.chunks + agreeing_s
            if takes_message(stage, task, count, schedule.chunks):
                work_s += taken(stage, task).processor_s / 2
            if receiver(stage, task, count, schedule.chunks) is not None:
                work_s += sent(stage, task).processor_s / 2
            return work_s

        return Times(work_s, lambda stage, task: Transit(sent(stage, task).seconds, 0.0), machine.ranks_per_core)

    def _agreeing_s(self, schedule: StepSchedule, machine: MachineModel) -> float:
        """Give the seconds in which the ranks of a stage agree on a task, where it depends on what has come."""
        grid = self.grid
        if schedule.order(0, grid.stages, self.training.passes(grid)).known:
            return 0.0
        held = [axis for axis in HOLDING if grid[axis] > 1]
        return sum(sum(machine.message(WORD_BYTES, grid, axis, 0, grid[axis] - 1)) for axis in held)

    def _simulated(
        self, choice: ScheduleChoice, stages: Sequence[StageTimes], step: StepTime, machine: MachineModel
    ) -> Simulated:
        """Give the parts of a step as means over stages: what each waits for, at the step's end, too, and idle time."""
        passes = self.training.passes(self.grid)
        tasks_s = {key: passes * seconds for key, seconds in _means(stage.tasks_s for stage in stages).items()}
        time_s = step.time_s + max(stage.tail_s for stage in stages)
        busy_s = step.busy_s + fmean(stage.tail_s for stage in stages)
        shorter = min(step.busy_s / sum(tasks_s.values()), 1.0)  # a stage is, while others leave it their core
        within, tail = _means(one.exposed_s for one in stages), _means(one.tail_exposed_s for one in stages)
        exposed = {
            axis: passes * shorter * within.get(axis, 0.0) + tail.get(axis, 0.0)
            for axis in dict.fromkeys((*within, *tail))
        }
        exposed[CUTTING_STAGES.value] = max(time_s - busy_s, 0.0)
        spread = machine.fitted.spread
        return Simulated(
            time_s=time_s,
            low_s=time_s / (1 + spread),
            high_s=time_s * (1 + spread),
            compute_s=time_s - sum(exposed.values()),
            hidden_s=0.0,
            exposed_s=exposed,
            hidden_by_axis_s={},
            phases_s=tasks_s,
            peak_bytes=round(self.needs[choice].total),
            schedule=str(choice),
        )


def _means(of_stages: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Give the mean over stages of each number, which is 0 where a stage has none."""
    found = list(of_stages)
    return {key: fmean(one.get(key, 0.0) for one in found) for key in dict.fromkeys(chain.from_iterable(found))}


def trace_stages(
    training: Training,
    grid: Grid,
    device_memory: float | None = None,
    machine: MachineModel | None = None,
    by_s: float = inf,
) -> TracedStages:
    """Trace the first rank of each stage of a grid, or where all blocks are alike of the first, a middle and the last
    one. device_memory: bytes, for as many passes as which has room. machine, by_s: nothing more is traced of a step
    that takes longer there for sure.
    """
    network = training.model.network()
    if training.pipeline.schedule == AUTO:
        needs = list_schedules(training, grid, device_memory)
        if not training.alike:  # each stage takes a trace for each kind of schedule
            choice = fastest_by_flops(training, grid, needs)
            needs = {choice: needs[choice]}
    else:
        needs = {training.staged(grid).choice: Footprint(training).on(grid)}
    by = {choice: with_schedule(training, choice) for choice in needs}
    cached = min(blocks_cached(one, grid, needs[choice].total, device_memory) for choice, one in by.items())
    if machine is not None and by_s < inf and training.alike and grid.stages > LAST:
        least_s = training.passes(grid) * least_pass_s(training, grid, machine, cached)
        if least_s * SURELY > by_s:
            return TracedStages(training, grid, {}, {}, {}, {}, cached, 0)
    of_kinds = {_kind(choice.make()): one for choice, one in by.items()}
    if training.alike:
        traces = trace_few_blocks(training, grid, of_kinds, cached)
    else:
        traces = trace_each_stage(grid, of_kinds, cached)
    sample_bytes = training.batch.at_once(grid) * training.compute
    return TracedStages(
        training,
        grid,
        traces,
        {chunks: count_blocks(one, grid) for (_, chunks), one in of_kinds.items()},
        {
            chunks: [sample_bytes * size for size in one.cut(grid).sent(network, grid)]
            for (_, chunks), one in of_kinds.items()
        },
        needs,
        cached,
        MORE * grid.stages if training.alike else training.model.layers,
    )
