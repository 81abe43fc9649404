"""ZB-H1 (Qi et al., Zero Bubble Pipeline Parallelism, 2024): weight gradients fill what would be idle."""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.overlap.tasks import Direction, Known, Task


@dataclass(frozen=True)
class ZeroBubble:
    """A stage begins as in 1F1B, and leaves as many weight tasks for the end as there are stages before it. Together
    they are as many passes as 1F1B keeps on its first stage.
    """

    chunks = 1
    deferring = True

    def check(self, stages: int, passes: int) -> None:
        """Allow any."""

    def order(self, stage: int, stages: int, passes: int) -> Known:
        """Give the first forwards, then a backward, a weight task and a forward in turns, then what is left."""
        return Known(_tasks(passes, first=stages - stage, waiting=stage))

    def held(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        """Bound them by the number of stages."""
        pending = min(passes, stage + 1)
        return min(passes, stages) - pending, pending


def _tasks(passes: int, first: int, waiting: int) -> Iterator[Task]:
    yield from (Task(Direction.FORWARD, number) for number in range(min(first, passes)))
    for number in range(passes + waiting):
        if number < passes:
            yield Task(Direction.BACKWARD, number)
        if number >= waiting:
            yield Task(Direction.WEIGHT, number - waiting)
        if number + first < passes:
            yield Task(Direction.FORWARD, number + first)
