"""Message-driven schedules: a stage works on the message that has come."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from engine.overlap.tasks import Direction, Ready, StageTask
from engine.pipeline.fixed_schedules import FixedSchedule


@lru_cache(maxsize=64)
def _list_tasks(direction: Direction, passes: int) -> Sequence[StageTask]:
    """List a stage's tasks of a direction, and one beyond the last; they are the same on every stage."""
    return tuple(StageTask(direction, number) for number in range(passes + 1))


class _MessageOrder:
    """Order that depends on what has come: it changes by the tasks that it gives, never by messages."""

    known: Sequence[StageTask] = ()

    def __init__(self, passes: int, directions: Sequence[Direction]) -> None:
        self._passes = passes
        self._given = dict.fromkeys(directions, 0)
        self._tasks = {direction: _list_tasks(direction, passes) for direction in directions}

    @property
    def left(self) -> int:
        """Tasks that are still to come."""
        return len(self._given) * self._passes - sum(self._given.values())

    def _next(self, direction: Direction) -> StageTask:
        return self._tasks[direction][self._given[direction]]

    def _take(self, task: StageTask) -> StageTask:
        self._given[task.direction] += 1
        return task


@dataclass(frozen=True)
class MessageDriven(FixedSchedule):
    """Algorithm 2 of axonn-ipdps22."""

    limit: int | None = None
    """the paper's pipeline_limit, the most micro-batches that are under way (default: the stages)"""

    def order(self, stage: int, stages: int, passes: int) -> "Algorithm2":
        """Begin the order of g^(i,j) with i = stage, for any j."""
        return Algorithm2(stage == 0, stage == stages - 1, passes, min(self.limit or stages, passes))

    def live_passes(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        """Bound them by what is under way. The last stage has one at a time."""
        return (1 if stage == stages - 1 else min(self.limit or stages, passes)), 0


class Algorithm2(_MessageOrder):
    """Order of a stage; comments give the paper's lines."""

    def __init__(self, is_first: bool, is_last: bool, passes: int, limit: int) -> None:
        super().__init__(passes, (Direction.FORWARD, Direction.BACKWARD))
        self._is_first, self._is_last, self._limit = is_first, is_last, limit

    def next(self, ready: Ready) -> StageTask | None:
        """Take the task that the algorithm has next, or that of a message that has come: of two, the forward's."""
        forward, backward = self._next(Direction.FORWARD), self._next(Direction.BACKWARD)
        under_way = forward.number - backward.number
        if self._is_last and under_way:  # 15, 16: the last stage's backward follows the forward
            return self._take(backward)
        if self._is_first and under_way < self._limit and forward.number < self._passes:
            return self._take(forward)  # 3-9: at first as many as the limit; 23-25: one after each backward
        if not self._is_first and forward.number < self._passes and ready(forward):  # 12, 13: from g^(i-1,j)
            return self._take(forward)  # 14
        if under_way and ready(backward):  # 12, 21: from g^(i+1,j)
            return self._take(backward)  # 22
        return None  # 11, 12: there are messages to receive


@dataclass(frozen=True)
class MessageDrivenZeroBubble(FixedSchedule):
    """Message-driven, with weight gradients while no message has come.

    Where both a forward's and a backward's message have come, 1F1B's number decides: a stage that holds fewer
    micro-batches than there are stages from it to the last goes on with the forward, so that those after it don't
    starve; else the backward is first. On equal, quiet stages the known order of ZB-H1 idles less with the same memory.
    This one adapts to a slow stage and to delays, and turns more memory into less idle time.
    """

    limit: int | None = None
    """the most passes that are kept, from a forward to the weight task (default: the stages, as 1F1B's first keeps)"""
    cap: int | None = None
    """of them, the most weight tasks that wait (default: all)"""
    deferring = True

    def order(self, stage: int, stages: int, passes: int) -> "MessagesFirst":
        limit = self.limit or stages
        return MessagesFirst(passes, limit, self.cap or limit, ahead=stages - stage)

    def live_passes(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        kept = min(self.limit or stages, passes)
        pending = min(self.cap or kept, kept)
        return kept - pending, pending


class MessagesFirst(_MessageOrder):
    """Order of a stage. ahead: with fewer micro-batches held it goes on with a forward.

    It can't deadlock. A stage that waits has no weight task left to do and holds micro-batches, or is to begin with the
    next one. The last stage's backward is always ready, as is the first stage's forward.
    """

    def __init__(self, passes: int, limit: int, cap: int, ahead: int) -> None:
        super().__init__(passes, tuple(Direction))
        self._limit, self._cap, self._ahead = limit, cap, ahead

    def next(self, ready: Ready) -> StageTask | None:
        """Take the forward or backward whose message has come if there is room for it, else the oldest weight task."""
        forwards, backwards, weights = self._given.values()
        held, pending = forwards - backwards, backwards - weights
        may_begin = forwards < self._passes and held + pending < self._limit
        forward = self._next(Direction.FORWARD) if may_begin else None
        backward = self._next(Direction.BACKWARD) if held > 0 and pending < self._cap else None
        for task in (forward, backward) if held < self._ahead else (backward, forward):
            if task is not None and ready(task):
                return self._take(task)
        return self._take(self._next(Direction.WEIGHT)) if pending else None
