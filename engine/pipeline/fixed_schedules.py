"""Schedules whose orders are known before a step: GPipe, 1F1B, interleaved 1F1B and ZB-H1."""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.errors import UsageError
from engine.overlap.tasks import Direction, Known, StageTask


class FixedSchedule:
    """Schedule of one chunk a stage that allows any number of stages and micro-batches."""

    chunks = 1
    deferring = False

    def check(self, stages: int, passes: int) -> None:
        """Allow any."""


@dataclass(frozen=True)
class GPipe(FixedSchedule):
    """All forwards, then all backwards (Huang et al., 2019): every stage keeps all micro-batches of a step."""

    def order(self, stage: int, stages: int, passes: int) -> Known:
        halves = Direction.FORWARD, Direction.BACKWARD
        return Known(StageTask(direction, number) for direction in halves for number in range(passes))

    def live_passes(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        return passes, 0


@dataclass(frozen=True)
class OneFOneB(FixedSchedule):
    """A forward, then a backward, in turns (PipeDream-Flush, Narayanan et al., 2021).

    A stage begins with as many forwards as there are stages after it, so that it keeps no more than one more.
    """

    def order(self, stage: int, stages: int, passes: int) -> Known:
        return Known(_in_turns(passes, ahead=stages - stage - 1))

    def live_passes(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        return min(passes, stages - stage), 0


def _in_turns(passes: int, ahead: int) -> Iterator[StageTask]:
    for step in range(passes + ahead):
        if step < passes:
            yield StageTask(Direction.FORWARD, step)
        if step >= ahead:
            yield StageTask(Direction.BACKWARD, step - ahead)


@dataclass(frozen=True)
class Interleaved(FixedSchedule):
    """1F1B of stages with several chunks (Narayanan et al., 2021), in Megatron-LM's order.

    A stage takes as many micro-batches as there are stages through its first chunk, then through its second and so on,
    then the next as many. Fill and drain shrink by the number of chunks, and messages grow by it.
    """

    chunks: int = 2

    def check(self, stages: int, passes: int) -> None:
        """Ask for groups of as many micro-batches as there are stages."""
        if passes % stages:
            raise UsageError(
                f"--schedule interleaved takes a multiple of {stages} micro-batches through {stages} stages, but a "
                f"step has {passes}: give another --micro-batch, --batch-size or --pipe, or another --schedule."
            )

    def order(self, stage: int, stages: int, passes: int) -> Known:
        of_chunks = _in_turns(passes * self.chunks, self._ahead(stage, stages))
        return Known(self._task(task.direction, task.number, stages) for task in of_chunks)

    def live_passes(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        return min(passes * self.chunks, self._ahead(stage, stages) + 1), 0

    def _ahead(self, stage: int, stages: int) -> int:
        """Count the forwards that come before the first pair."""
        return 2 * (stages - stage - 1) + (self.chunks - 1) * stages

    def _task(self, direction: Direction, step: int, stages: int) -> StageTask:
        """Return a stage's forward or backward of this number, counted over all chunks."""
        group, of_group = divmod(step, stages * self.chunks)
        chunk, number = divmod(of_group, stages)
        if direction is Direction.BACKWARD:
            chunk = self.chunks - 1 - chunk
        return StageTask(direction, group * stages + number, chunk)


@dataclass(frozen=True)
class ZeroBubble(FixedSchedule):
    """ZB-H1: weight gradients fill what would be idle (Qi et al., Zero Bubble Pipeline Parallelism, 2024).

    A stage begins as in 1F1B, and leaves as many weight tasks for the end as there are stages before it. Together they
    are as many passes as 1F1B keeps on its first stage.
    """

    deferring = True

    def order(self, stage: int, stages: int, passes: int) -> Known:
        return Known(self._tasks(passes, first=stages - stage, waiting=stage))

    def live_passes(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        pending = min(passes, stage + 1)
        return min(passes, stages) - pending, pending

    def _tasks(self, passes: int, first: int, waiting: int) -> Iterator[StageTask]:
        yield from (StageTask(Direction.FORWARD, number) for number in range(min(first, passes)))
        for number in range(passes + waiting):
            if number < passes:
                yield StageTask(Direction.BACKWARD, number)
            if number >= waiting:
                yield StageTask(Direction.WEIGHT, number - waiting)
            if number + first < passes:
                yield StageTask(Direction.FORWARD, number + first)
