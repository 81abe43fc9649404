"""Schedules of a pipeline take turns: how long a step takes, and how long each stage is idle.

Those of the same cut train one model, and the schedule changes between steps; another cut, which interleaved has, is a
model of its own. Ranks begin each step together, so that the clocks of stages agree. What a simulation of all stages
gives stands beside what was measured.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from statistics import mean, median

import torch

from engine.comm.funnel import Comm
from engine.contest.rounds import Side, take_rounds
from engine.contest.schedules import CheckedSchedules
from engine.contest.watched_runner import Carried, WatchedRunner, carried_out
from engine.grid import CUTTING_STAGES, HOLDING
from engine.overlap.tasks import Direction, StepSchedule
from engine.pipeline.cut import Cut
from engine.pipeline.simulation import Times, Transit, play
from engine.result import metrics
from engine.result.schema.contest import Contest, PlayedTask, ScheduleSide, StageTimes
from engine.training.checks import ContestSetup
from engine.training.gathered import breakdown
from engine.training.trainer import Trainer

log = logging.getLogger(__name__)

DIRECTIONS = tuple(Direction)


@dataclass(slots=True, kw_only=True)
class _Side(Side):
    """Schedule."""

    schedule: StepSchedule
    runner: WatchedRunner
    steps: list[list[Carried]] = field(default_factory=list)
    """Counted steps, as this rank carried them out."""
    idle_s: list[float] = field(default_factory=list)
    """Seconds of each of them in which this rank waited for other stages."""
    held: int = 0
    pending: int = 0
    peak_bytes: int = 0
    """On a device."""

    def begin(self) -> None:
        self.runner.schedule = self.schedule
        if (device := self.trainer.comm.device).type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

    def prepare(self) -> None:
        self.trainer.comm.barrier()

    def note(self) -> None:
        runner, device = self.runner, self.trainer.comm.device
        self.steps.append(carried_out(runner.tasks, self.recording.marks))
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
    """Of each step, by round, like work_s."""
    work_s: tuple[tuple[float, ...], ...] = ()
    tasks: tuple[PlayedTask, ...] = ()

    @property
    def mean_idle_s(self) -> float:
        """Mean idle seconds of a step."""
        return mean(chain.from_iterable(self.idle_s))


def compare_schedules(run: CheckedSchedules, setup: ContestSetup) -> Contest:
    """Measure every schedule. Collective. Raises Diverged."""
    first = setup.trainer
    trainers: dict[Cut, Trainer] = {run.training.staged(run.grid).cut: first}
    sides = []
    for choice, training in zip(run.choices, run.variants, strict=True):
        staged = training.staged(run.grid)
        trainer = trainers.get(staged.cut) or trainers.setdefault(staged.cut, setup.make(training, first.comm))
        if not isinstance(runner := trainer.runner, WatchedRunner):
            runner = WatchedRunner(trainer.model, staged.schedule, run.disturbance, training.seed)
            trainer.runner = runner
        recording = trainer.recorder.new_recording()
        sides.append(_Side(str(choice), trainer, recording, schedule=staged.schedule, runner=runner))
    take_rounds(sides, run.rounds, setup)
    passes = run.training.passes(run.grid)
    found = []
    for choice, side in zip(run.choices, sides, strict=True):
        measured = _measured(side, sides[0], passes, drawn=run.drawn)
        found.append(measured.model_copy(update={"auto": choice == run.auto}))
    for one in found:
        log.info("%s", describe(one))
    return Contest(base=sides[0].name, sides=tuple(found))


def _measured(side: _Side, base: _Side, passes: int, *, drawn: bool) -> ScheduleSide:
    """Return what a side's turns come to. Collective."""
    comm, step_s = side.trainer.comm, side.recording.time_s / side.recording.steps
    at = _typical(comm, side)
    stages = _stages(comm, side, at if drawn else None)
    rest_s = mean(stage.rest_s for stage in stages)
    idle, simulated_s = simulated(side.schedule, passes, stages, rest_s)
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
        drawn_s=_times_s(side)[at] if drawn else None,
        peak_bytes=peak_bytes or None,
        machine=None if taken is None else taken.machine,
    )


def simulated(
    schedule: StepSchedule, passes: int, stages: Sequence[StageMeans], rest_s: float
) -> tuple[list[float], float]:
    """Return the idle share of each stage, and the seconds of a step, where each task takes its mean time on its stage
    and messages take none.
    """
    times = Times(lambda stage, task: stages[stage].task_s[task.direction], lambda stage, task: Transit(0.0, 0.0))
    step = play(schedule, len(stages), passes, times)
    step_s = step.time_s + rest_s
    return [metrics.idle_share(step.time_s - busy_s, step_s) for busy_s in step.busy_s], step_s


def _times_s(side: _Side) -> list[float]:
    return [time_s for times in side.rounds_s for time_s in times]


def _typical(comm: Comm, side: _Side) -> int:
    """Find the step whose time is nearest to the median, on rank 0. Collective."""
    times = _times_s(side)
    middle = median(times)
    nearest = min(range(len(times)), key=lambda step: abs(times[step] - middle))
    return int(comm.gather_rows(torch.tensor([nearest]))[0].item())


def _stages(comm: Comm, side: _Side, drawn: int | None) -> list[StageMeans]:
    """Gather what the ranks know that decide for their stage, and the drawn step of the first of them. Collective."""
    recording = side.recording
    busy: dict[Direction, list[float]] = defaultdict(list)
    for one in side.steps:
        for task, start_s, end_s in one:
            busy[task.direction].append(end_s - start_s)
    work_s = [sum(end_s - start_s for _, start_s, end_s in one) for one in side.steps]
    rest_s = (recording.time_s - sum(side.idle_s) - sum(work_s)) / recording.steps
    means = [mean(busy[direction]) if busy[direction] else 0.0 for direction in DIRECTIONS]
    counts = [float(side.held), float(side.pending), float(side.peak_bytes)]
    own = [rest_s, *means, *counts, *side.idle_s, *work_s]
    step = [] if drawn is None else side.steps[drawn]
    for task, start_s, end_s in step:
        own += [float(DIRECTIONS.index(task.direction)), float(task.number), float(task.chunk), start_s, end_s]
    rows = comm.gather_rows(torch.tensor(own, dtype=torch.float64)).tolist()
    coords = [comm.grid.coords(rank) for rank in range(comm.grid.size)]
    leaders = [rank for rank, at in enumerate(coords) if all(at[axis] == 0 for axis in HOLDING)]
    steps = [len(times) for times in side.rounds_s]
    found = []
    for stage in range(comm.grid.stages):
        of_stage = [rows[rank] for rank in leaders if coords[rank][CUTTING_STAGES] == stage]
        found.append(_stage(of_stage, steps))
    return found


def _stage(rows: Sequence[Sequence[float]], steps: Sequence[int]) -> StageMeans:
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
    tasks = [_played(numbers[at : at + 5]) for at in range(0, len(numbers), 5)]
    named = {direction: time_s for direction, time_s in zip(DIRECTIONS, task_s, strict=True) if time_s}
    return StageMeans(rest_s, named, held, pending, peak_bytes, idle_s, work_s, tuple(tasks))


def _played(numbers: Sequence[float]) -> PlayedTask:
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
