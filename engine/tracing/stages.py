"""The stages of a pipeline are traced, each alone, and played together on a machine by the schedule that drives them.

A stage's tasks are timed on its first rank, one micro-batch after the other, without its messages. All stages between
the first and the last are alike but for the number of their blocks. Each is traced with few blocks and with more, as
every block is like the one before it.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.comm.collective import Kind
from engine.footprint.memory import Footprint
from engine.grid import CUTTING_STAGES, Grid
from engine.overlap.tasks import Direction, StepSchedule, Task
from engine.pipeline.simulation import PipelineStep, Times, Transit, play
from engine.simulator.events import Trace
from engine.simulator.machine import MachineModel
from engine.simulator.simulate import Simulated, simulate
from engine.tracing.step import trace
from engine.training_record import Training

FEW, MORE = 1, 3
"""A chunk is traced with so many blocks."""
TAIL = ("reduce", "optimizer")


@dataclass(frozen=True, slots=True)
class _StageTimes:
    """It has the seconds of a pass's tasks on a stage, by direction and of all chunks, and of the step's end; and what
    a pass exposes along each axis.
    """

    tasks_s: Mapping[str, float]
    tail_s: float
    exposed_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TracedStages:
    """It holds what decides the time of a pipeline's step, on any machine.

    few, more: traces of the first, of a middle and of the last stage, with so many blocks a chunk. blocks: of a chunk
    of each stage, on average. message_bytes: of the activations between two stages, on a rank.
    """

    training: Training
    grid: Grid
    few: tuple[Trace, Trace, Trace]
    more: tuple[Trace, Trace, Trace]
    blocks: tuple[float, ...]
    message_bytes: float
    peak_bytes: float
    whole: None = None
    cached_blocks: int = 0

    @property
    def drawn(self) -> int:
        """Count the layers of the traces."""
        return self.more[0].layers

    def on(self, machine: MachineModel, *, timeline: bool = False) -> Simulated:
        """Simulate a step. There is no timeline of it."""
        step, stages, _ = self.played(machine)
        passes = self.training.passes(self.grid)
        time_s = max(of_step.end_s + of.tail_s for of_step, of in zip(step.stages, stages, strict=True))
        busiest = max(range(len(stages)), key=lambda number: sum(stages[number].tasks_s.values()))
        worked_s = min(passes * sum(stages[busiest].tasks_s.values()) + stages[busiest].tail_s, time_s)
        exposed = {axis: passes * seconds for axis, seconds in stages[busiest].exposed_s.items()}
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
            phases_s={name: passes * seconds for name, seconds in stages[busiest].tasks_s.items()},
            peak_bytes=round(self.peak_bytes),
        )

    def played(self, machine: MachineModel) -> tuple[PipelineStep, list[_StageTimes], StepSchedule]:
        """Play the stages together: their step, their times and the schedule."""
        staged = self.training.staged(self.grid)
        schedule, last = staged.schedule, self.grid.stages - 1
        few, more = ([_times(one, machine) for one in traces] for traces in (self.few, self.more))
        stages = [
            _extrapolated(few[kind], more[kind], self.blocks[stage])
            for stage, kind in ((stage, 0 if stage == 0 else 2 if stage == last else 1) for stage in range(last + 1))
        ]

        def work_s(stage: int, task: Task) -> float:
            return stages[stage].tasks_s.get(task.direction.value, 0.0) / schedule.chunks

        message_s = machine.collective_s(Kind.SEND, self.message_bytes, self.grid, CUTTING_STAGES)
        times = Times(work_s, lambda stage, task: Transit(message_s, 0.0), machine.ranks_a_core)
        return play(schedule, self.grid.stages, self.training.passes(self.grid), times), stages, schedule


def traced_stages(training: Training, grid: Grid) -> TracedStages:
    """Trace the first rank of the first, of a middle and of the last stage of a grid."""
    staged = training.staged(grid)
    stride, stages = grid.stride(CUTTING_STAGES), grid.stages
    few, more = (
        tuple(
            trace(_of_blocks_each(training, stages, staged.schedule, blocks), grid, stage * stride, one_by_one=True)
            for stage in (0, stages // 2 if stages > 2 else stages - 1, stages - 1)
        )
        for blocks in (FEW, MORE)
    )
    model = training.model
    rows = training.batch.at_once(grid) * model.sequence
    return TracedStages(
        training,
        grid,
        few,  # type: ignore[arg-type]
        more,  # type: ignore[arg-type]
        tuple(sum(map(len, chunks)) / len(chunks) for chunks in staged.cut.blocks),
        rows * model.hidden / grid.plane * training.compute,
        Footprint(training).on(grid).total,
    )


def _of_blocks_each(training: Training, stages: int, schedule: StepSchedule, blocks: int) -> Training:
    """Change a training to so many blocks a chunk."""
    parts = stages * schedule.chunks
    model = replace(training.model, layers=blocks * parts)  # type: ignore[type-var]
    pipeline = replace(training.pipeline, stages=",".join([str(blocks)] * parts))
    return replace(training, model=model, pipeline=pipeline, overlap=replace(training.overlap, cache=0))


def _extrapolated(few: _StageTimes, more: _StageTimes, blocks: float) -> _StageTimes:
    """Give the times of so many blocks a chunk, from those of FEW and of MORE."""
    by = (blocks - FEW) / (MORE - FEW)

    def of(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
        return {key: max(0.0, one.get(key, 0.0) + by * (seconds - one.get(key, 0.0))) for key, seconds in other.items()}

    tail_s = max(0.0, few.tail_s + by * (more.tail_s - few.tail_s))
    return _StageTimes(of(few.tasks_s, more.tasks_s), tail_s, of(few.exposed_s, more.exposed_s))


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
