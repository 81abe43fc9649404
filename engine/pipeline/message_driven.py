"""Algorithm 2 of axonn-ipdps22: a stage works on the message that has come. Comments give its lines."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.overlap.tasks import Direction, Ready, Task


@dataclass(frozen=True)
class MessageDriven:
    """limit: the paper's pipeline_limit, as many micro-batches as are under way at most (default: the stages)."""

    limit: int | None = None
    chunks = 1
    deferring = False

    def check(self, stages: int, passes: int) -> None:
        """Allow any."""

    def order(self, stage: int, stages: int, passes: int) -> "Algorithm2":
        """Begin the order of g^(i,j) with i = stage, for any j."""
        return Algorithm2(stage == 0, stage == stages - 1, passes, min(self.limit or stages, passes))

    def held(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        """Bound them by what is under way. The last stage has one at a time."""
        return (1 if stage == stages - 1 else min(self.limit or stages, passes)), 0


class Algorithm2:
    """It changes by the tasks that it gives, never by messages."""

    known: Sequence[Task] = ()

    def __init__(self, is_first: bool, is_last: bool, passes: int, limit: int) -> None:
        self._is_first, self._is_last, self._passes, self._limit = is_first, is_last, passes, limit
        self._forwards = self._backwards = 0
        """So many of each were given."""

    @property
    def left(self) -> int:
        """Count the tasks that are still to come."""
        return 2 * self._passes - self._forwards - self._backwards

    def next(self, ready: Ready) -> Task | None:
        """Take the task that the algorithm has next, or that of a message that has come: of two, the forward's."""
        forward, backward = Task(Direction.FORWARD, self._forwards), Task(Direction.BACKWARD, self._backwards)
        under_way = self._forwards - self._backwards
        if self._is_last and under_way:  # 15, 16: the last stage's backward follows the forward
            return self._take(backward)
        if self._is_first and under_way < self._limit and self._forwards < self._passes:
            return self._take(forward)  # 3-9: at first as many as the limit; 23-25: one after each backward
        if not self._is_first and self._forwards < self._passes and ready(forward):  # 12, 13: from g^(i-1,j)
            return self._take(forward)  # 14
        if under_way and ready(backward):  # 12, 21: from g^(i+1,j)
            return self._take(backward)  # 22
        return None  # 11, 12: there are messages to receive

    def _take(self, task: Task) -> Task:
        if task.direction is Direction.FORWARD:
            self._forwards += 1
        else:
            self._backwards += 1
        return task
