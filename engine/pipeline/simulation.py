"""Simulation of all stages of a pipeline, each by the order that the engine drives, too. No torch.

A stage carries out one task at a time. What a task makes for a neighbour leaves when the task is over, while the stage
goes on: each stage has a channel for each direction, on which messages follow one another. Where the ranks of several
stages share cores, a stage works the faster the fewer of the others work.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from heapq import heappop, heappush
from itertools import count, product
from math import inf
from typing import NamedTuple, Self

from engine.overlap.tasks import Direction, Known, Ready, StageTask, StepSchedule, TaskOrder, receiver, takes_message


class Transit(NamedTuple):
    """Time of a message."""

    busy_s: float
    """time in which its channel can't be used by the next"""
    latency_s: float
    """time on top of that"""


_NONE = Transit(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Times:
    """Times of a stage's tasks, and of what they send to a neighbour."""

    work_s: Callable[[int, StageTask], float]
    transit: Callable[[int, StageTask], Transit]
    ranks_per_core: float = 1.0
    """ranks that share a core; work_s is at a rank's share of it"""


def times_of(
    schedule: StepSchedule, part_s: Callable[[int, Direction], float], transit: Callable[[int, Direction], Transit]
) -> Times:
    """Return the times of tasks that are alike for all micro-batches and chunks.

    part_s: of a stage's forward, backward without weight gradients, and those, of all its chunks. transit: of a message
    from a stage.
    """

    def work_s(stage: int, task: StageTask) -> float:
        whole_s = part_s(stage, task.direction)
        if task.direction is Direction.BACKWARD and not schedule.deferring:
            whole_s += part_s(stage, Direction.WEIGHT)
        return whole_s / schedule.chunks

    return Times(work_s, lambda stage, task: transit(stage, task.direction))


def alike(times: Times) -> Times:
    """Return times that are asked for once for all micro-batches, which are alike."""

    @cache
    def work_s(stage: int, direction: Direction, chunk: int) -> float:
        return times.work_s(stage, StageTask(direction, 0, chunk))

    @cache
    def transit(stage: int, direction: Direction, chunk: int) -> Transit:
        return times.transit(stage, StageTask(direction, 0, chunk))

    return Times(
        lambda stage, task: work_s(stage, task.direction, task.chunk),
        lambda stage, task: transit(stage, task.direction, task.chunk),
        times.ranks_per_core,
    )


def equal_times(schedule: StepSchedule, transit: Transit = _NONE) -> Times:
    """Have forwards, backwards and weight gradients take 1 each."""
    return times_of(schedule, lambda stage, direction: 1.0, lambda stage, direction: transit)


class Played(NamedTuple):
    """A task as a stage carried it out."""

    stage: int
    task: StageTask
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """Simulated step of all stages."""

    busy_s: tuple[float, ...]
    """time in which each stage works"""
    played: tuple[Played, ...]
    """tasks by the time of their end"""

    @property
    def time_s(self) -> float:
        return self.played[-1].end_s


class LateError(Exception):
    """The step can't be over by the time that it was given."""


class DeadlockError(Exception):
    """No stage can go on, and tasks are left; the message says what each stage waits for."""


Receiver = tuple[int, Direction, int]
"""Stage, direction and chunk of the task that takes what another makes."""


@dataclass(slots=True)
class _Stage:
    order: TaskOrder
    left: int
    """Tasks that the order has still to give."""
    free: frozenset[tuple[Direction, int]]
    """Directions and chunks of the tasks that take no message."""
    receivers: dict[tuple[Direction, int], Receiver]
    """Receiver of each direction's and chunk's tasks that make something for another."""
    next: StageTask | None = None
    """Task that a known order has given, whose message hasn't come."""
    working: bool = False
    came: set[StageTask] = field(default_factory=set)
    channel_free_s: dict[Direction, float] = field(default_factory=lambda: dict.fromkeys(Direction, 0.0))
    busy_s: float = 0.0
    ready: Ready = field(init=False)

    def __post_init__(self) -> None:
        came, free = self.came, self.free
        self.ready = lambda task: task in came or (task.direction, task.chunk) in free

    @classmethod
    def begin(cls, schedule: StepSchedule, number: int, stages: int, passes: int) -> Self:
        """Begin a step of a stage, with what doesn't depend on the micro-batch."""
        order, free, receivers = schedule.order(number, stages, passes), set[tuple[Direction, int]](), {}
        for direction, chunk in product(Direction, range(schedule.chunks)):
            task = StageTask(direction, 0, chunk)
            if not takes_message(number, task, stages, schedule.chunks):
                free.add((direction, chunk))
            if there := receiver(number, task, stages, schedule.chunks):
                receivers[direction, chunk] = there[0], there[1].direction, there[1].chunk
        return cls(order, order.left, frozenset(free), receivers)


class _Pipeline:
    """Simulation that goes from one end of a task, or arrival of a message, to the next."""

    def __init__(self, schedule: StepSchedule, stages: int, passes: int, times: Times, by_s: float) -> None:
        schedule.check(stages, passes)
        self._schedule, self._count, self._times, self._by_s = schedule, stages, times, by_s
        self._left_s = [of_pass_s * passes for of_pass_s in least_of_pass(schedule, stages, times)]
        """Least time in which each stage can do the tasks that it hasn't begun."""
        self._stages = [_Stage.begin(schedule, stage, stages, passes) for stage in range(stages)]
        self._now_s = 0.0
        self._speed = 1.0
        """Speed of a stage that works, by that at a rank's share of a core."""
        self._since = 0.0, 0.0
        """Time since which the speed is so, and the work that a stage that never stops has done by then."""
        self._working: list[tuple[float, int, int, StageTask, float]] = []
        """Heap of tasks that are carried out: the work that a stage that never stops has done at its end, a number, the
        stage, the task and the time of its start.
        """
        self._coming: list[tuple[float, int, int, StageTask]] = []
        """Heap of messages: the time at which each comes, a number, the stage and its task that takes it. Of two things
        that happen at one moment that with the smaller number is first.
        """
        self._numbers = count()
        self._played: list[Played] = []

    def play(self) -> PipelineStep:
        share = self._times.ranks_per_core != 1.0
        for number in range(self._count):
            self._go_on(number)
        while self._working or self._coming:
            if share:
                self._share_cores()
            end = self._first_end()
            if self._coming and self._coming[0] < end:
                self._now_s, _, number, task = heappop(self._coming)
                self._stages[number].came.add(task)
            else:
                self._now_s, _ = end
                _, _, number, task, start_s = heappop(self._working)
                self._finish(number, task, start_s)
            self._go_on(number)
        if waiting := list(self._waiting()):
            raise DeadlockError("; ".join(waiting))
        return PipelineStep(tuple(stage.busy_s for stage in self._stages), tuple(self._played))

    def _share_cores(self) -> None:
        speed = min(self._times.ranks_per_core, self._count / max(len(self._working), 1))
        if speed != self._speed:
            self._since, self._speed = (self._now_s, self._done()), speed

    def _done(self) -> float:
        """Return the work that a stage that never stops has done by now."""
        time_s, done = self._since
        return done + (self._now_s - time_s) * self._speed

    def _first_end(self) -> tuple[float, int]:
        if not self._working:
            return inf, 0
        time_s, done = self._since
        at, number = self._working[0][:2]
        return time_s + (at - done) / self._speed, number

    def _go_on(self, number: int) -> None:
        stage = self._stages[number]
        if stage.working:
            return
        if stage.next is None:
            if not stage.left:
                return
            stage.next = stage.order.next(stage.ready)
            if stage.next is None:
                return
            stage.left -= 1
        task = stage.next
        if stage.ready(task):
            if self._now_s + self._left_s[number] > self._by_s:
                raise LateError
            work_s = self._times.work_s(number, task)
            self._left_s[number] -= work_s / self._times.ranks_per_core
            heappush(self._working, (self._done() + work_s, next(self._numbers), number, task, self._now_s))
            stage.working, stage.next = True, None

    def _finish(self, number: int, task: StageTask, start_s: float) -> None:
        stage, channel = self._stages[number], task.direction
        stage.working = False
        self._played.append(Played(number, task, start_s, self._now_s))
        stage.busy_s += self._now_s - start_s
        if there := stage.receivers.get((channel, task.chunk)):
            other, direction, chunk = there
            transit = self._times.transit(number, task) if other != number else _NONE
            free_s = max(self._now_s, stage.channel_free_s[channel]) + transit.busy_s
            stage.channel_free_s[channel] = free_s
            taker = StageTask(direction, task.number, chunk)
            heappush(self._coming, (free_s + transit.latency_s, next(self._numbers), other, taker))

    def _waiting(self) -> Iterator[str]:
        for number, stage in enumerate(self._stages):
            if stage.next:
                yield f"stage {number} waits for what {stage.next.direction} {stage.next.number} takes"
            elif stage.left:
                yield f"stage {number} waits for any message, with {stage.left} tasks left"


def least_of_pass(schedule: StepSchedule, stages: int, times: Times) -> list[float]:
    """Return the least time of each stage for all tasks of a micro-batch, of which the first stands for all."""
    chunks = range(schedule.chunks)
    directions = [way for way in Direction if schedule.deferring or way is not Direction.WEIGHT]
    tasks = [StageTask(direction, 0, chunk) for direction in directions for chunk in chunks]
    return [sum(times.work_s(stage, task) for task in tasks) / times.ranks_per_core for stage in range(stages)]


def play(schedule: StepSchedule, stages: int, passes: int, times: Times, by_s: float = inf) -> PipelineStep:
    """Play one step. by_s: a time by which it has to be over, if micro-batches are alike.

    Raises UsageError as the schedule does, LateError as soon as a stage has too much left to do, and DeadlockError.
    """
    return _Pipeline(schedule, stages, passes, times, by_s).play()


class Replayed:
    """Schedule whose stages do as a simulation has them do, whatever comes when."""

    def __init__(self, schedule: StepSchedule, stages: int, passes: int, times: Times) -> None:
        self._of, self._played = schedule, play(schedule, stages, passes, times).played
        self.chunks, self.deferring = schedule.chunks, schedule.deferring

    def check(self, stages: int, passes: int) -> None:
        self._of.check(stages, passes)

    def order(self, stage: int, stages: int, passes: int) -> Known:
        return Known(played.task for played in self._played if played.stage == stage)

    def live_passes(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        return self._of.live_passes(stage, stages, passes)
