"""GPipe (Huang et al., 2019): all forwards, then all backwards."""

from dataclasses import dataclass

from engine.overlap.tasks import Direction, Known, Task


@dataclass(frozen=True)
class GPipe:
    """Every stage keeps all micro-batches of a step."""

    chunks = 1
    deferring = False

    def check(self, stages: int, passes: int) -> None:
        """Allow any."""

    def order(self, stage: int, stages: int, passes: int) -> Known:
        """Give all forwards, then all backwards, the first micro-batch's first."""
        halves = Direction.FORWARD, Direction.BACKWARD
        return Known(Task(direction, number) for direction in halves for number in range(passes))

    def held(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        """Bound them by the step."""
        return passes, 0
