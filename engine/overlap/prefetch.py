"""Gathers of sharded weights (Algorithm 1, line 2) ahead of their use, in a learnt order.

Passes use the same weights in the same order, a forward in its own and a backward, recomputation included, in another.
The first forward and the first backward learn which. From these and the tasks that a step expects follow the gathers
with any cache, so that a change of cache or flags needs no new learning. Later tasks keep the next few gathers in
flight (OAG, axonn-sc24 V-D), also from the end of one task to the beginning of the next, of whichever pass. If a task
departs from the order, what is in flight is waited for and dropped, the rest of the task gathers at use, and the next
ones learn again. If a task comes that the step did not expect, gathers run ahead within tasks only. Either is slower,
never wrong. Where the order of tasks depends on messages, gathers of the next forward and of the next backward are in
flight side by side.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto

import torch
from torch import Tensor

from engine.comm.funnel import Comm, Handle, Kind, Lane
from engine.grid import SHARDING
from engine.overlap.flags import Overlap
from engine.overlap.tasks import Direction, StageTask
from engine.overlap.weight import Casts, ShardedWeight, gathered_bytes

log = logging.getLogger(__name__)


class GatherMode(Enum):
    """Way in which the present task gathers."""

    NONE = auto()
    """at use, outside of tasks"""
    SYNCHRONOUS = auto()
    """at use, and kept if cached"""
    LEARNING = auto()
    """as SYNCHRONOUS, noting the order of uses"""
    FOLLOWING = auto()
    """in the learnt order, with the next ones in flight"""


def gathers(uses: Iterable[ShardedWeight], cached: Collection[ShardedWeight]) -> list[ShardedWeight]:
    """List the gathers of these uses in a pass: every other use of a cached weight takes what the last kept."""
    found: list[ShardedWeight] = []
    kept: set[ShardedWeight] = set()
    for weight in uses:
        if weight in kept:
            kept.remove(weight)
            continue
        found.append(weight)
        if weight in cached:
            kept.add(weight)
    return found


@dataclass(slots=True)
class _Ahead:
    """Row of tasks whose gathers run ahead: of all tasks, or of those of one direction."""

    expected: deque[StageTask]
    """tasks after the present one, as far as they are known"""
    planned: Iterator[ShardedWeight] | None = None
    """weights still to be issued, up to the first task of unknown order; None without a plan"""
    flying: deque[tuple[ShardedWeight, Handle]] = field(default_factory=deque)
    """gathers in flight"""

    def forget(self) -> None:
        """Drop the plan, once what is in flight has landed."""
        self.planned = None
        while self.flying:
            self.flying.popleft()[1].wait()


class Prefetch:
    def __init__(self, comm: Comm, casts: Casts, dtype: torch.dtype, overlap: Overlap) -> None:
        self._comm, self._casts, self._dtype = comm, casts, dtype
        self._sharded = comm.grid.shards > 1
        self._mode = GatherMode.NONE
        self._task: StageTask | None = None
        self._uses: dict[tuple[Direction, int], list[ShardedWeight]] = {}
        """weights that a task of this direction and chunk uses, in order"""
        self._seen: list[ShardedWeight] = []
        """uses of the present task, when its order is learnt"""
        self._order: list[ShardedWeight] = []
        """uses of the present task, when it follows an order"""
        self._position = 0
        """place of the next use in the order"""
        self._rows: dict[Direction, _Ahead] = {}
        """row of the tasks of each direction: the same for both, or apart"""
        self._row = _Ahead(deque())
        """row of the present task"""
        self._cached: frozenset[ShardedWeight] = frozenset()
        self._kept: dict[tuple[int, int], dict[ShardedWeight, Tensor]] = {}
        """cached weights of each pass under way that it has gathered and not used again"""
        self._kept_now: dict[ShardedWeight, Tensor] = {}
        """those of the present task's pass"""
        self._warned = False
        self.switch(overlap)

    def switch(self, overlap: Overlap) -> None:
        """Gather as these flags say, from the next step on. What was learnt stays."""
        self._overlap = overlap
        self.most_ahead_bytes = self.most_kept_bytes = 0

    def cache(self, weights: Collection[ShardedWeight]) -> None:
        """From the next step on, keep each of these from a gather to its next use in the pass."""
        self._cached = frozenset(weights)

    def start_step(self, tasks: Sequence[StageTask], *, apart: bool = False) -> None:
        """Expect these tasks in this order; apart: the order between directions isn't known."""
        rows = (
            [[task for task in tasks if task.direction is direction] for direction in Direction] if apart else [tasks]
        )
        aheads = [_Ahead(deque(row)) for row in rows]
        self._rows = {direction: aheads[number % len(aheads)] for number, direction in enumerate(Direction)}

    def start_task(self, task: StageTask) -> None:
        self._end_task()
        self._row = row = self._rows.setdefault(task.direction, _Ahead(deque()))
        if row.expected and row.expected[0] == task:
            row.expected.popleft()
        else:
            row.forget()
            row.expected.clear()
        self._task = task
        self._kept_now = self._kept.setdefault((task.number, task.chunk), {})
        if not self._knows(task):
            self._mode, self._seen, row.planned = GatherMode.LEARNING, [], None
        elif not self._overlap.oag:
            self._mode = GatherMode.SYNCHRONOUS
        else:
            self._mode, self._position = GatherMode.FOLLOWING, 0
            self._order = self._uses.get((task.direction, task.chunk), [])
            if row.planned is None:
                row.planned = self._gathers_of([task, *row.expected])
            self._issue_ahead()

    def end_step(self) -> None:
        """End the step after its last backward. The weights will change: gathered ones may not be used again."""
        self._end_task()
        for row in self._rows.values():
            if row.flying and row.expected and row.expected[0].direction is Direction.BACKWARD:
                self._depart(row.flying[0][0])  # a backward that never came: the next step won't gather for it
        self._mode = GatherMode.NONE
        self._forget_plan()
        self._rows.clear()
        self._kept.clear()

    def abort(self) -> None:
        """Leave a task and forget its gathers, once Comm.abandon() has waited for them."""
        self._mode, self._task = GatherMode.NONE, None
        self._row, self._kept_now = _Ahead(deque()), {}
        self._rows.clear()
        self._kept.clear()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        interrupted, self._mode = self._mode, GatherMode.NONE
        try:
            yield
        finally:
            self._mode = interrupted

    def gather(self, weight: ShardedWeight) -> Tensor:
        """Gather the flat elements of the weight's tile in the compute dtype."""
        if not self._sharded:
            return self._casts.cast(weight.shard)
        if self._mode is GatherMode.NONE:
            return self._issue(weight, at_once=True).wait()
        self._note_use(weight)
        if weight in self._kept_now:
            return self._kept_now.pop(weight)
        gathered = self._next(weight)
        if weight in self._cached:
            self._kept_now[weight] = gathered
            kept_bytes = sum(gathered_bytes(kept, self._dtype) for kept in self._kept.values())
            self.most_kept_bytes = max(self.most_kept_bytes, kept_bytes)
        return gathered

    def _note_use(self, weight: ShardedWeight) -> None:
        if self._mode is GatherMode.LEARNING:
            self._seen.append(weight)
        elif self._mode is GatherMode.FOLLOWING:
            if self._position == len(self._order) or self._order[self._position] is not weight:
                self._depart(weight)
            self._position += 1

    def _next(self, weight: ShardedWeight) -> Tensor:
        """Return the next tile; where the order is followed, those after it are issued before it is waited for."""
        flying = self._row.flying
        if self._mode is GatherMode.FOLLOWING and not (flying and flying[0][0] is weight):
            self._depart(weight)  # the forward of this pass has kept other weights than its order says
        if self._mode is not GatherMode.FOLLOWING:
            return self._issue(weight, at_once=True).wait()
        _, handle = flying.popleft()
        self._issue_ahead()
        return handle.wait()

    def _issue_ahead(self) -> None:
        row = self._row
        assert row.planned is not None
        while len(row.flying) < self._overlap.prefetch_depth:
            weight = next(row.planned, None)
            if weight is None:
                break
            row.flying.append((weight, self._issue(weight, at_once=False)))
        ahead = {id(row): row for row in self._rows.values()}.values()
        ahead_bytes = gathered_bytes((weight for row in ahead for weight, _ in row.flying), self._dtype)
        self.most_ahead_bytes = max(self.most_ahead_bytes, ahead_bytes)

    def _issue(self, weight: ShardedWeight, *, at_once: bool) -> Handle:
        # Cast before it travels, not after. To keep what is cast would take as much memory as a tenth of the state, and
        # save a rank of a large grid milliseconds of a step of seconds: only what lies on the host is kept so.
        shard = self._casts.cast(weight.shard)
        return self._comm.issue(Kind.ALL_GATHER, SHARDING, shard, lane=Lane.GATHER, at_once=at_once)

    def _knows(self, task: StageTask) -> bool:
        """Return whether a task's order is known: a backward's gathers follow from what its forward kept, too."""
        of_chunk = (direction for direction in (Direction.FORWARD, task.direction) if direction is not Direction.WEIGHT)
        return all((direction, task.chunk) in self._uses for direction in of_chunk)

    def _gathers_of(self, tasks: Iterable[StageTask]) -> Iterator[ShardedWeight]:
        """Yield what these tasks have to gather, up to the first of unknown order."""
        found: dict[tuple[Direction, int], list[ShardedWeight]] = {}
        for direction, _, chunk in tasks:
            if direction is Direction.WEIGHT:
                continue
            if not self._knows(StageTask(direction, 0, chunk)):
                return
            if (direction, chunk) not in found:
                forward = self._uses[Direction.FORWARD, chunk]
                gathered = found[Direction.FORWARD, chunk] = gathers(forward, self._cached)
                if direction is Direction.BACKWARD:
                    whole = gathers([*forward, *self._uses[Direction.BACKWARD, chunk]], self._cached)
                    found[Direction.BACKWARD, chunk] = whole[len(gathered) :]
            yield from found[direction, chunk]

    def _end_task(self) -> None:
        if self._mode is GatherMode.FOLLOWING and self._position < len(self._order):
            self._depart(self._order[self._position])
        task, self._task = self._task, None
        if task is not None:
            if self._mode is GatherMode.LEARNING:
                self._uses[task.direction, task.chunk] = self._seen
            if task.direction is Direction.BACKWARD:
                self._kept.pop((task.number, task.chunk), None)
        self._mode = GatherMode.NONE
        self._kept_now = {}

    def _depart(self, weight: ShardedWeight) -> None:
        """Leave the order: at this weight the task went another way, or ended."""
        self._forget_plan()
        self._uses = {}
        self._mode = GatherMode.SYNCHRONOUS
        if not self._warned:
            self._warned = True
            log.warning(
                "%s was used in another order than in the step before: this pass gathers without prefetching, and the "
                "next one learns the order again.",
                weight.placement.name,
            )

    def _forget_plan(self) -> None:
        for row in self._rows.values():
            row.forget()
