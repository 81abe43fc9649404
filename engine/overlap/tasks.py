"""A step consists of tasks in an order. No torch.

A pass is one micro-batch's way through the network. Its forward and its backward are tasks, between which tasks of
other passes may run. Who adds an order of tasks implements StepSchedule; nothing else decides it.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol


class Direction(StrEnum):
    """It says which half of a pass a task is. A backward recomputes what its forward did not keep."""

    FORWARD = "forward"
    BACKWARD = "backward"


class Task(NamedTuple):
    """A task is one half of a pass. number: the pass, counted in a step from 0."""

    direction: Direction
    number: int


class StepSchedule(Protocol):
    """It orders a step's tasks. A pass's forward comes before its backward, and each comes once."""

    def tasks(self, passes: int) -> Sequence[Task]:
        """List the tasks of a step of so many passes, in the order in which a rank carries them out."""


class OneByOne:
    """In this order each pass is over before the next one begins, so that the activations of one are kept at a time."""

    def tasks(self, passes: int) -> Sequence[Task]:
        """List forward 0, backward 0, forward 1 and so on."""
        return [Task(direction, number) for number in range(passes) for direction in Direction]


ONE_BY_ONE = OneByOne()
