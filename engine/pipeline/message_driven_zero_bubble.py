"""Message-driven zero bubble: a stage works on the message that has come, and on weight gradients while none has.

Where both a forward's and a backward's message have come, 1F1B's number decides: a stage that holds fewer micro-batches
than there are stages from it to the last goes on with the forward, so that those after it don't starve; else the
backward is first. On equal, quiet stages the known order of ZB-H1 idles less with the same memory. This one adapts to a
slow stage and to delays, and turns more memory into less idle time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.overlap.tasks import Direction, Ready, Task


@dataclass(frozen=True)
class MessageDrivenZeroBubble:
    """limit: so many passes are kept at most, from a forward to the weight task (default: the stages, as 1F1B keeps on
    its first). cap: of them so many at most are weight tasks that wait (default: all).
    """

    limit: int | None = None
    cap: int | None = None
    chunks = 1
    deferring = True

    def check(self, stages: int, passes: int) -> None:
        """Allow any."""

    def order(self, stage: int, stages: int, passes: int) -> "MessagesFirst":
        """Begin the order of a stage."""
        return MessagesFirst(passes, self._limit(stages), self.cap or self._limit(stages), ahead=stages - stage)

    def held(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        """Bound them by limit and cap."""
        kept = min(self._limit(stages), passes)
        pending = min(self.cap or kept, kept)
        return kept - pending, pending

    def _limit(self, stages: int) -> int:
        return self.limit or stages


class MessagesFirst:
    """It changes by the tasks that it gives, never by messages.

    limit, cap: as the schedule has them. ahead: a stage that holds fewer micro-batches goes on with a forward.

    It can't deadlock. A stage that waits has no weight task left to do and holds micro-batches, or is to begin with the
    next one. The last stage's backward is always ready, as is the first stage's forward.
    """

    known: Sequence[Task] = ()

    def __init__(self, passes: int, limit: int, cap: int, ahead: int) -> None:
        self._passes, self._limit, self._cap, self._ahead = passes, limit, cap, ahead
        self._given = dict.fromkeys(Direction, 0)

    @property
    def left(self) -> int:
        """Count the tasks that are still to come."""
        return 3 * self._passes - sum(self._given.values())

    def next(self, ready: Ready) -> Task | None:
        """Take the forward or backward whose message has come if there is room for it, else the oldest weight task."""
        forwards, backwards, weights = self._given.values()
        held, pending = forwards - backwards, backwards - weights
        may = {
            Direction.FORWARD: forwards < self._passes and held + pending < self._limit,
            Direction.BACKWARD: held > 0 and pending < self._cap,
        }
        for direction in may if held < self._ahead else reversed(may):
            if may[direction] and ready(task := Task(direction, self._given[direction])):
                return self._take(task)
        return self._take(Task(Direction.WEIGHT, weights)) if pending else None

    def _take(self, task: Task) -> Task:
        self._given[task.direction] += 1
        return task
