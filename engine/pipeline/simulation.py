"""All stages of a pipeline are played together, each by the order that the engine drives, too. No torch.

A stage carries out one task at a time. What a task makes for a neighbour leaves when the task is over, while the stage
goes on: each stage has a channel for each direction, on which messages follow one another. They are taken in the order
in which they were sent, as every order has it. Where the ranks of several stages share cores, a stage works the faster
the fewer of the others work.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from engine.overlap.tasks import Direction, Known, Order, StepSchedule, Task, receiver, takes_message


class Transit(NamedTuple):
    """It is how long a message takes. busy_s: that its channel can't be used by the next. latency_s: on top of that."""

    busy_s: float
    latency_s: float


_NONE = Transit(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Times:
    """It says how long a stage works on a task, and how long what the task makes is on its way to a neighbour.

    ranks_a_core: so many take turns on a core, and work_s is at such a rank's share of it.
    """

    work_s: Callable[[int, Task], float]
    transit: Callable[[int, Task], Transit]
    ranks_a_core: float = 1.0


def times_of(
    schedule: StepSchedule, part_s: Callable[[int, Direction], float], transit: Callable[[int, Direction], Transit]
) -> Times:
    """Give the times of tasks that are alike for all micro-batches and chunks.

    part_s: of a stage's forward, backward without weight gradients, and those, of all its chunks. transit: of a message
    from a stage.
    """

    def work_s(stage: int, task: Task) -> float:
        whole_s = part_s(stage, task.direction)
        if task.direction is Direction.BACKWARD and not schedule.deferring:
            whole_s += part_s(stage, Direction.WEIGHT)
        return whole_s / schedule.chunks

    return Times(work_s, lambda stage, task: transit(stage, task.direction))


class Played(NamedTuple):
    """It is a task as a stage carried it out."""

    stage: int
    task: Task
    start_s: float
    end_s: float


@dataclass(slots=True)
class StageStep:
    """It says how the step went on one stage. held: the most passes whose forward was over and whose backward wasn't.
    pending: the most whose backward was over and whose weight task wasn't. kept: the most of both together.
    """

    busy_s: float = 0.0
    end_s: float = 0.0
    held: int = 0
    pending: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """It is a simulated step of all stages. played: their tasks by the time at which they were over."""

    stages: tuple[StageStep, ...]
    played: tuple[Played, ...]

    @property
    def time_s(self) -> float:
        """Give the time at which the last stage is done."""
        return max(stage.end_s for stage in self.stages)

    def idle(self, stage: int) -> float:
        """Give the part of the step in which a stage stands still."""
        return 1 - self.stages[stage].busy_s / self.time_s

    @property
    def idle_share(self) -> float:
        """Give the mean of that over all stages."""
        return sum(map(self.idle, range(len(self.stages)))) / len(self.stages)


@dataclass(slots=True)
class _Work:
    """It is a task that is being carried out. end_s: as long as no other stage begins or ends one. number: of two that
    end at one moment the smaller is first.
    """

    stage: int
    task: Task
    start_s: float
    end_s: float
    number: int


class DeadlockError(Exception):
    """No stage can go on, and tasks are left. It says what each stage waits for."""


@dataclass(slots=True)
class _Stage:
    order: Order
    next: Task | None = None
    """A known order has given this task, whose message hasn't come."""
    working: "_Work | None" = None
    came: set[Task] = field(default_factory=set)
    done: Counter[Direction] = field(default_factory=Counter)
    channel_free_s: dict[Direction, float] = field(default_factory=lambda: dict.fromkeys(Direction, 0.0))
    step: StageStep = field(default_factory=StageStep)


class _Pipeline:
    """It moves from moment to moment at which a task is over, or a message has come."""

    def __init__(self, schedule: StepSchedule, stages: int, passes: int, times: Times) -> None:
        schedule.check(stages, passes)
        self._schedule, self._count, self._times = schedule, stages, times
        self._stages = [_Stage(schedule.order(stage, stages, passes)) for stage in range(stages)]
        self._now_s = 0.0
        self._speed = 1.0
        """That of a stage that works, by its speed at a rank's share of a core."""
        self._events: list[tuple[float, int, Callable[[], int]]] = []
        """Each is a time, a number that no other has, and what then happens on a stage, whose number it gives."""
        self._numbers = count()
        self._played: list[Played] = []

    def play(self) -> PipelineStep:
        for number in range(self._count):
            self._go_on(number)
        while self._events or any(stage.working for stage in self._stages):
            busy = [stage.working for stage in self._stages if stage.working is not None]
            self._share_cores(busy)
            work = min(busy, key=lambda work: (work.end_s, work.number), default=None)
            if work is None or (self._events and self._events[0] < (work.end_s, work.number)):
                self._now_s, _, happen = heappop(self._events)
                self._go_on(happen())
            else:
                self._now_s = work.end_s
                self._finish(work)
                self._go_on(work.stage)
        if waiting := list(self._waiting()):
            raise DeadlockError("; ".join(waiting))
        return PipelineStep(tuple(stage.step for stage in self._stages), tuple(self._played))

    def _share_cores(self, busy: Sequence["_Work"]) -> None:
        """Let those that work go on as fast as their number allows."""
        before, self._speed = self._speed, min(self._times.ranks_a_core, self._count / max(len(busy), 1))
        if self._speed != before:
            for work in busy:
                work.end_s = self._now_s + (work.end_s - self._now_s) * before / self._speed

    def _at(self, time_s: float, happen: Callable[[], int]) -> None:
        heappush(self._events, (time_s, next(self._numbers), happen))

    def _go_on(self, number: int) -> None:
        """Begin the next task of a stage that does nothing, if it can."""
        stage = self._stages[number]

        def ready(task: Task) -> bool:
            return task in stage.came or not takes_message(number, task, self._count, self._schedule.chunks)

        if stage.working is not None:
            return
        if stage.next is None and stage.order.left:
            stage.next = stage.order.next(ready)
        if stage.next is not None and ready(stage.next):
            end_s = self._now_s + self._times.work_s(number, stage.next) / self._speed
            stage.working = _Work(number, stage.next, self._now_s, end_s, next(self._numbers))
            stage.next = None

    def _finish(self, work: _Work) -> None:
        """End a task, and send what it has made."""
        number, task, end_s = work.stage, work.task, work.end_s
        stage = self._stages[number]
        stage.working = None
        stage.done[task.direction] += 1
        self._played.append(Played(number, task, work.start_s, end_s))
        stage.step.busy_s += end_s - work.start_s
        stage.step.end_s = end_s
        self._count_kept(stage)
        there = receiver(number, task, self._count, self._schedule.chunks)
        if there:
            self._send(stage, task, self._times.transit(number, task) if there[0] != number else _NONE, end_s, *there)

    def _count_kept(self, stage: _Stage) -> None:
        step, done = stage.step, stage.done
        held = done[Direction.FORWARD] - done[Direction.BACKWARD]
        pending = done[Direction.BACKWARD] - done[Direction.WEIGHT] if self._schedule.deferring else 0
        step.held, step.pending = max(step.held, held), max(step.pending, pending)
        step.kept = max(step.kept, held + pending)

    def _send(self, stage: _Stage, task: Task, transit: Transit, now_s: float, there: int, taker: Task) -> None:
        """Send what a task has made to the stage, and its task, that takes it."""
        channel = task.direction
        stage.channel_free_s[channel] = max(now_s, stage.channel_free_s[channel]) + transit.busy_s
        self._at(stage.channel_free_s[channel] + transit.latency_s, partial(self._receive, there, taker))

    def _receive(self, number: int, task: Task) -> int:
        self._stages[number].came.add(task)
        return number

    def _waiting(self) -> Iterator[str]:
        for number, stage in enumerate(self._stages):
            if stage.next:
                yield f"stage {number} waits for what {stage.next.direction} {stage.next.number} takes"
            elif stage.order.left:
                yield f"stage {number} waits for any message, with {stage.order.left} tasks left"


def play(schedule: StepSchedule, stages: int, passes: int, times: Times) -> PipelineStep:
    """Play one step of so many micro-batches. Raises UsageError as the schedule does, and DeadlockError."""
    return _Pipeline(schedule, stages, passes, times).play()


class Replayed:
    """It is a schedule whose stages do as a simulation has them do, whatever comes when."""

    def __init__(self, schedule: StepSchedule, stages: int, passes: int, times: Times) -> None:
        self._of, self._played = schedule, play(schedule, stages, passes, times).played
        self.chunks, self.deferring = schedule.chunks, schedule.deferring

    def check(self, stages: int, passes: int) -> None:
        """Ask what the schedule asks for."""
        self._of.check(stages, passes)

    def order(self, stage: int, stages: int, passes: int) -> Known:
        """Give a stage's tasks in the simulated order."""
        return Known(played.task for played in self._played if played.stage == stage)

    def held(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        """Bound them as the schedule does."""
        return self._of.held(stage, stages, passes)
