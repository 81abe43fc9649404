"""1F1B (PipeDream-Flush, Narayanan et al., 2021): a forward, then a backward, in turns."""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.overlap.tasks import Direction, Known, Task


@dataclass(frozen=True)
class OneFOneB:
    """A stage begins with as many forwards as there are stages after it, so that it keeps no more than one more."""

    chunks = 1
    deferring = False

    def check(self, stages: int, passes: int) -> None:
        """Allow any."""

    def order(self, stage: int, stages: int, passes: int) -> Known:
        """Give the first forwards, then forwards and backwards in turns, then the last backwards."""
        return Known(_tasks(passes, ahead=stages - stage - 1))

    def held(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        """Bound them by the stages from this one to the last."""
        return min(passes, stages - stage), 0


def _tasks(passes: int, ahead: int) -> Iterator[Task]:
    for step in range(passes + ahead):
        if step < passes:
            yield Task(Direction.FORWARD, step)
        if step >= ahead:
            yield Task(Direction.BACKWARD, step - ahead)
