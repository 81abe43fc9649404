"""Tasks of a step, and their order. No torch.

A pass is one micro-batch's way through the blocks that a rank holds, or through one of its chunks of them. Its forward
and its backward are tasks, between which tasks of other passes may run; a schedule that defers weight gradients makes a
third task of them. A new order of tasks implements StepSchedule; nothing else decides it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol


class Direction(StrEnum):
    """Part of a pass. A backward recomputes what its forward did not keep."""

    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHT = "weight"
    """weight gradients that the pass's backward has left"""


class StageTask(NamedTuple):
    """Part of a pass. number: the micro-batch, counted in a step from 0. chunk: of the rank's blocks."""

    direction: Direction
    number: int
    chunk: int = 0


Ready = Callable[[StageTask], bool]
"""Return whether all has come from other stages that a task takes: activations, or their gradients."""


class TaskOrder(Protocol):
    """Order of the tasks of one stage in one step.

    Each comes once: a pass's forward, then its backward, then its weight task if weight gradients are deferred; and the
    micro-batches of a direction in a chunk in their order.
    """

    @property
    def known(self) -> Sequence[StageTask]:
        """All tasks to come, if that doesn't depend on messages; else none."""

    @property
    def left(self) -> int: ...

    def next(self, ready: Ready) -> StageTask | None:
        """Take the next task, to be carried out now. A known order gives it even if it isn't ready; another gives None
        where a message has to come first.
        """


class StepSchedule(Protocol):
    """Order for each stage of a pipeline. A network that isn't cut is one stage."""

    @property
    def chunks(self) -> int:
        """Number of chunks of a stage's blocks; the first of all stages come before the second of all."""

    @property
    def deferring(self) -> bool:
        """Whether weight gradients are tasks of their own."""

    def check(self, stages: int, passes: int) -> None:
        """Raise UsageError unless these numbers of stages and micro-batches fit the schedule."""

    def order(self, stage: int, stages: int, passes: int) -> TaskOrder:
        """Begin the order of a stage in a step."""

    def live_passes(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        """Return (live, deferred): at most `live` micro-batches hold activations, and at most `deferred` more wait only
        for their weight gradients.
        """


def live_whole_passes(schedule: StepSchedule, stage: int, stages: int, passes: int) -> tuple[float, float]:
    """Bound the same in passes through all of the stage's blocks: one through a chunk is a part of one."""
    kept, pending = schedule.live_passes(stage, stages, passes)
    return kept / schedule.chunks, pending / schedule.chunks


def receiver(stage: int, task: StageTask, stages: int, chunks: int) -> tuple[int, StageTask] | None:
    """Return the stage, and its task, that takes what a task makes; None where the network ends.

    After the last stage the first goes on with its next chunk. Gradients come back the same way.
    """
    if task.direction is Direction.WEIGHT:
        return None
    step = 1 if task.direction is Direction.FORWARD else -1
    chunk, there = divmod(task.chunk * stages + stage + step, stages)
    return (there, task._replace(chunk=chunk)) if 0 <= chunk < chunks else None


def takes_message(stage: int, task: StageTask, stages: int, chunks: int) -> bool:
    """Return whether a task takes what another makes, on another stage or in another chunk."""
    match task.direction:
        case Direction.FORWARD:
            return stage > 0 or task.chunk > 0
        case Direction.BACKWARD:
            return stage < stages - 1 or task.chunk < chunks - 1
        case Direction.WEIGHT:
            return False


class Known:
    """Order that depends on no message."""

    def __init__(self, tasks: Iterable[StageTask]) -> None:
        self._tasks = deque(tasks)

    @property
    def known(self) -> Sequence[StageTask]:
        return self._tasks

    @property
    def left(self) -> int:
        return len(self._tasks)

    def next(self, ready: Ready) -> StageTask:
        return self._tasks.popleft()


@dataclass(frozen=True)
class OneByOne:
    """Order in which each pass is over before the next one begins, so that one's activations are kept at a time."""

    chunks: int = 1
    deferring: bool = False

    def check(self, stages: int, passes: int) -> None:
        """Allow any."""

    def order(self, stage: int, stages: int, passes: int) -> Known:
        """Return forward 0, backward 0, forward 1 and so on, each through all chunks."""
        back = (Direction.BACKWARD, Direction.WEIGHT) if self.deferring else (Direction.BACKWARD,)
        return Known(
            StageTask(direction, number, chunk)
            for number in range(passes)
            for directions, chunks in (((Direction.FORWARD,), range(self.chunks)), (back, reversed(range(self.chunks))))
            for chunk in chunks
            for direction in directions
        )

    def live_passes(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        return min(passes, 1) * self.chunks, 0


ONE_BY_ONE = OneByOne()
