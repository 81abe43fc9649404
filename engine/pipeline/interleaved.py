"""Interleaved 1F1B (Narayanan et al., 2021), in Megatron-LM's order: each stage holds several chunks of the network."""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.errors import UsageError
from engine.overlap.tasks import Direction, Known, Task


@dataclass(frozen=True)
class Interleaved:
    """A stage takes as many micro-batches as there are stages through its first chunk, then through its second and so
    on, then the next as many. Fill and drain shrink by the number of chunks, and messages grow by it.
    """

    chunks: int = 2
    deferring = False

    def check(self, stages: int, passes: int) -> None:
        """Ask for groups of as many micro-batches as there are stages."""
        if passes % stages:
            raise UsageError(
                f"--schedule interleaved takes a multiple of {stages} micro-batches through {stages} stages, but a "
                f"step has {passes}: give another --micro-batch, --batch-size or --pipe, or another --schedule."
            )

    def order(self, stage: int, stages: int, passes: int) -> Known:
        """Give the first forwards, then forwards and backwards in turns, then the last backwards."""
        return Known(self._tasks(stages, passes, self._ahead(stage, stages)))

    def held(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        """Bound them by the first forwards and one more, each of a chunk."""
        return min(passes * self.chunks, self._ahead(stage, stages) + 1), 0

    def _ahead(self, stage: int, stages: int) -> int:
        """Count the forwards that come before the first pair."""
        return 2 * (stages - stage - 1) + (self.chunks - 1) * stages

    def _tasks(self, stages: int, passes: int, ahead: int) -> Iterator[Task]:
        for step in range(passes * self.chunks + ahead):
            if step < passes * self.chunks:
                yield self._task(Direction.FORWARD, step, stages)
            if step >= ahead:
                yield self._task(Direction.BACKWARD, step - ahead, stages)

    def _task(self, direction: Direction, step: int, stages: int) -> Task:
        """Give a stage's forward or backward of this number, counted over all chunks."""
        group, of_group = divmod(step, stages * self.chunks)
        chunk, number = divmod(of_group, stages)
        if direction is Direction.BACKWARD:
            chunk = self.chunks - 1 - chunk
        return Task(direction, group * stages + number, chunk)
