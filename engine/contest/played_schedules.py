"""Contest of schedules, carried out: how long a step takes, and how long each stage is idle.

Those of the same cut train one model, and the schedule changes between steps; another cut, which interleaved has, is a
model of its own. Ranks begin each step together, so that the clocks of stages agree. What a simulation of all stages
gives stands beside what was measured.
"""

import logging
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from statistics import mean, median
from typing import NamedTuple

import torch
from torch import Tensor

from engine.comm.funnel import Comm
from engine.contest.rounds import CheckedContest, Disturbance, Side, take_rounds
from engine.grid import CUTTING_STAGES, HOLDING, Axis
from engine.overlap.tasks import Direction, StageTask, StepSchedule
from engine.parallel.link import Shapes, StageLink
from engine.parallel.model import ParallelModel
from engine.parallel.runner import Mark, MicroBatch, Runner
from engine.pipeline.cut import Cut
from engine.pipeline.registry import ScheduleChoice
from engine.pipeline.simulation import Times, Transit, play
from engine.result import metrics
from engine.result.schema.contest import Contest, PlayedTask, ScheduleSide, StageTimes
from engine.training.checks import ContestSetup
from engine.training.gathered import breakdown
from engine.training.trainer import Trainer
from engine.training_record import Training

log = logging.getLogger(__name__)

DIRECTIONS = tuple(Direction)
BETWEEN = "message"
"""Phase of a step between tasks."""


class TaskSpan(NamedTuple):
    """Time that a task took, in seconds from the start of the step."""

    task: StageTask
    start_s: float
    end_s: float


def find_spans(tasks: Iterable[StageTask], marks: Sequence[tuple[str, float]]) -> list[TaskSpan]:
    """Find when a step's tasks ran. tasks: in their order. marks: the step's phases with their starts."""
    begun = next(place for place, (name, _) in enumerate(marks) if name == BETWEEN)
    spans = [(start, end) for (name, start), (_, end) in pairwise(marks[begun:]) if name in list(Direction)]
    return [TaskSpan(task, *span) for task, span in zip(tasks, spans, strict=True)]


class WatchedRunner(Runner):
    """Runner that notes when each of its tasks began and ended, and may be made slower on purpose; its schedule may
    change between steps.

    Between its tasks a stage waits for a message, in a phase of the step of its own. What makes it slower is asleep
    before a task's message leaves, or at the end of a task that sends none, so that it takes the stage's time as work
    does. seed: of the delays, which are the same for all ranks of a stage.
    """

    def __init__(self, model: ParallelModel, schedule: StepSchedule, disturbance: Disturbance, seed: int) -> None:
        super().__init__(model, schedule)
        self.tasks: list[StageTask] = []
        """Tasks of the last step, in their order."""
        self._seed = seed
        self._steps = 0
        self._delays_s = disturbance.delays_s
        self._slow_by = disturbance.slow_by if self._stage == disturbance.slow_stage else 0.0
        self._mark: Mark = lambda _: None
        self._working = False
        self._began_s = 0.0

    def run(self, micro_batches: Sequence[MicroBatch], divisor: float | Tensor, mark: Mark = lambda _: None) -> Tensor:
        """Carry out all tasks of a step (Runner.run)."""
        self._mark, self.tasks, self._steps = mark, [], self._steps + 1
        mark(BETWEEN)
        return super().run(micro_batches, divisor)

    def _carry_out(self, task: StageTask, micro_batch: MicroBatch, divisor: float | Tensor) -> Tensor | None:
        self.tasks.append(task)
        if not self._takes_message(task):
            self._begin(task)
        loss = super()._carry_out(task, micro_batch, divisor)
        if self._working:  # it sent nothing
            self._slow_down()
        self._mark(BETWEEN)
        return loss

    def _open_link(self, entering: Sequence[Shapes], dtype: torch.dtype, alike: Sequence[Axis]) -> StageLink:
        return _WatchedLink(self._comm, entering, dtype, alike, taken=self._begin, leaving=self._delay)

    def _begin(self, task: StageTask) -> None:
        """Begin the work on a task, whose message is there."""
        self._mark(task.direction.value)
        self._working, self._began_s = True, self._now() if self._slow_by else 0.0

    def _slow_down(self) -> None:
        self._working = False
        if self._slow_by:
            time.sleep(self._slow_by * (self._now() - self._began_s))

    def _delay(self, task: StageTask) -> None:
        """Let time pass before a task's message leaves."""
        self._slow_down()
        if self._delays_s:
            self._now()
            drawing = random.Random(f"{self._seed} {self._steps} {self._stage} {task}")
            time.sleep(drawing.uniform(0.0, self._delays_s))

    def _now(self) -> float:
        """Return the time, once all that was computed is done; receives may be posted, for what is to come."""
        if self._comm.device.type == "cuda":
            torch.cuda.current_stream(self._comm.device).synchronize()
        return time.perf_counter()


class _WatchedLink(StageLink):
    """Link that calls when a task's message has come, and when one is to leave."""

    def __init__(
        self,
        comm: Comm,
        entering: Sequence[Shapes],
        dtype: torch.dtype,
        alike: Sequence[Axis],
        *,
        taken: Callable[[StageTask], None],
        leaving: Callable[[StageTask], None],
    ) -> None:
        super().__init__(comm, entering, dtype, alike)
        self._taken, self._leaving = taken, leaving

    def take(self, task: StageTask) -> list[Tensor]:
        content = super().take(task)
        self._taken(task)
        return content

    def send(self, task: StageTask, contents: Sequence[Tensor]) -> None:
        self._leaving(task)
        super().send(task, contents)


@dataclass(slots=True, kw_only=True)
class _Side(Side):
    """Schedule."""

    schedule: StepSchedule
    runner: WatchedRunner
    steps: list[list[TaskSpan]] = field(default_factory=list)
    """Tasks of the counted steps on this rank."""
    idle_s: list[float] = field(default_factory=list)
    """Seconds of each step in which this rank waited for other stages."""
    held: int = 0
    pending: int = 0
    peak_bytes: int = 0
    """On a device."""

    def begin(self) -> bool:
        self.runner.schedule = self.schedule
        if (device := self.trainer.comm.device).type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        return False

    def prepare(self) -> None:
        self.trainer.comm.barrier()

    def note(self) -> None:
        runner, device = self.runner, self.trainer.comm.device
        self.steps.append(find_spans(runner.tasks, self.recording.marks))
        self.idle_s.append(self.recording.axes[CUTTING_STAGES].exposed_s - sum(self.idle_s))
        self.held, self.pending = max(self.held, runner.most_held), max(self.pending, runner.most_pending)
        if device.type == "cuda":
            self.peak_bytes = max(self.peak_bytes, torch.cuda.max_memory_allocated(device))


@dataclass(frozen=True, slots=True)
class StageMeans:
    """Seconds of one stage's steps."""

    rest_s: float
    """Mean time that is neither a task nor a wait."""
    task_s: dict[Direction, float]
    held: int = 0
    pending: int = 0
    peak_bytes: int = 0
    idle_s: tuple[tuple[float, ...], ...] = ()
    """Idle seconds of each step, by round, like work_s."""
    work_s: tuple[tuple[float, ...], ...] = ()
    tasks: tuple[PlayedTask, ...] = ()

    @property
    def mean_idle_s(self) -> float:
        """Mean idle seconds of a step."""
        return mean(chain.from_iterable(self.idle_s))


def compare_schedules(
    run: CheckedContest,
    setup: ContestSetup,
    choices: Sequence[ScheduleChoice],
    variants: Sequence[Training],
    *,
    auto: ScheduleChoice | None,
    disturbance: Disturbance,
    drawn: bool,
) -> Contest:
    """Measure every schedule. Collective. Raises Diverged."""
    first = setup.trainer
    trainers: dict[Cut, Trainer] = {run.training.staged(run.grid).cut: first}
    sides = []
    for choice, training in zip(choices, variants, strict=True):
        staged = training.staged(run.grid)
        trainer = trainers.get(staged.cut) or trainers.setdefault(staged.cut, setup.make(training, first.comm))
        if not isinstance(runner := trainer.runner, WatchedRunner):
            runner = WatchedRunner(trainer.model, staged.schedule, disturbance, training.seed)
            trainer.runner = runner
        recording = trainer.recorder.new_recording()
        sides.append(_Side(str(choice), trainer, recording, schedule=staged.schedule, runner=runner))
    take_rounds(sides, run.rounds, setup)
    passes = run.training.passes(run.grid)
    found = []
    for choice, side in zip(choices, sides, strict=True):
        measured = _summarise(side, sides[0], passes, drawn=drawn)
        found.append(measured.model_copy(update={"auto": choice == auto}))
        log.info("%s", describe(found[-1]))
    return Contest(base=sides[0].name, sides=tuple(found))


def _summarise(side: _Side, base: _Side, passes: int, *, drawn: bool) -> ScheduleSide:
    """Summarise a side's turns. Collective."""
    comm, step_s = side.trainer.comm, side.recording.time_s / side.recording.steps
    at = _find_typical(comm, side)
    stages = _gather_stages(comm, side, at if drawn else None)
    rest_s = mean(stage.rest_s for stage in stages)
    idle, simulated_s = simulate(side.schedule, passes, stages, rest_s)
    peak_bytes = max(stage.peak_bytes for stage in stages)
    taken = breakdown(comm, side.recording, None)
    return ScheduleSide(
        **side.times(base),
        idle_share=mean(metrics.idle_share(stage.mean_idle_s, step_s) for stage in stages),
        simulated_idle_share=mean(idle),
        simulated_s=simulated_s,
        stages=tuple(
            StageTimes(
                idle_share=metrics.idle_share(stage.mean_idle_s, step_s),
                simulated_idle_share=share,
                task_s={direction.value: time_s for direction, time_s in stage.task_s.items()},
                most_held=stage.held,
                most_pending=stage.pending,
                tasks=stage.tasks,
                idle_s=stage.idle_s,
                work_s=stage.work_s,
            )
            for stage, share in zip(stages, idle, strict=True)
        ),
        drawn_s=[*chain.from_iterable(side.rounds_s)][at] if drawn else None,
        peak_bytes=peak_bytes or None,
        machine=None if taken is None else taken.machine,
    )


def simulate(
    schedule: StepSchedule, passes: int, stages: Sequence[StageMeans], rest_s: float
) -> tuple[list[float], float]:
    """Return the idle share of each stage, and the seconds of a step, where each task takes its mean time on its stage
    and messages take none.
    """
    times = Times(lambda stage, task: stages[stage].task_s[task.direction], lambda stage, task: Transit(0.0, 0.0))
    step = play(schedule, len(stages), passes, times)
    step_s = step.time_s + rest_s
    return [metrics.idle_share(step.time_s - busy_s, step_s) for busy_s in step.busy_s], step_s


def _find_typical(comm: Comm, side: _Side) -> int:
    """Find the step whose time is nearest to the median, on rank 0. Collective."""
    times = [*chain.from_iterable(side.rounds_s)]
    middle = median(times)
    nearest = min(range(len(times)), key=lambda step: abs(times[step] - middle))
    return int(comm.gather_rows(torch.tensor([nearest]))[0].item())


def _gather_stages(comm: Comm, side: _Side, drawn: int | None) -> list[StageMeans]:
    """Gather what the ranks know that decide for their stage, and the drawn step of the first of them. Collective."""
    recording = side.recording
    busy: dict[Direction, list[float]] = defaultdict(list)
    for one in side.steps:
        for task, start_s, end_s in one:
            busy[task.direction].append(end_s - start_s)
    work_s = [sum(end_s - start_s for _, start_s, end_s in one) for one in side.steps]
    rest_s = (recording.time_s - sum(side.idle_s) - sum(work_s)) / recording.steps
    means = [mean(busy[direction]) if busy[direction] else 0.0 for direction in DIRECTIONS]
    own = [rest_s, *means, side.held, side.pending, side.peak_bytes, *side.idle_s, *work_s]
    for task, start_s, end_s in [] if drawn is None else side.steps[drawn]:
        own += [DIRECTIONS.index(task.direction), task.number, task.chunk, start_s, end_s]
    rows = comm.gather_rows(torch.tensor(own, dtype=torch.float64)).tolist()
    coords = [comm.grid.coords(rank) for rank in range(comm.grid.size)]
    leaders = [rank for rank, at in enumerate(coords) if all(at[axis] == 0 for axis in HOLDING)]
    steps = [len(times) for times in side.rounds_s]
    return [
        _average_stage([rows[rank] for rank in leaders if coords[rank][CUTTING_STAGES] == stage], steps)
        for stage in range(comm.grid.stages)
    ]


def _average_stage(rows: Sequence[Sequence[float]], steps: Sequence[int]) -> StageMeans:
    """Take the mean of a stage's rows, the most of what is counted, and the tasks of the first. steps: how many each
    round has.
    """
    columns = zip(*rows, strict=True)

    def some(count: int, of: Callable[[Sequence[float]], float]) -> list[float]:
        return [of(column) for column in islice(columns, count)]

    rest_s, *task_s = some(1 + len(DIRECTIONS), mean)
    held, pending, peak_bytes = map(int, some(3, max))
    idle_s, work_s = (tuple(tuple(some(count, mean)) for count in steps) for _ in range(2))
    numbers = [column[0] for column in columns]
    tasks = [_name_task(numbers[at : at + 5]) for at in range(0, len(numbers), 5)]
    named = {direction: time_s for direction, time_s in zip(DIRECTIONS, task_s, strict=True) if time_s}
    return StageMeans(rest_s, named, held, pending, peak_bytes, idle_s, work_s, tuple(tasks))


def _name_task(numbers: Sequence[float]) -> PlayedTask:
    """Name a task as the result does: F3, B0, W12, F3.1."""
    direction, number, chunk = map(int, numbers[:3])
    part = f".{chunk}" if chunk else ""
    return f"{DIRECTIONS[direction].value[0].upper()}{number}{part}", numbers[3], numbers[4]


def describe(side: ScheduleSide) -> str:
    """Write one line for a person who waits."""
    line = f"{side.label:<36} {side.time_per_iteration_s:8.3f} s a step"
    if side.over_base is not None:
        line += f"  {side.over_base} of 1f1b"
    return f"{line}  {side.idle_share:.1%} idle, {side.simulated_idle_share:.1%} simulated"
