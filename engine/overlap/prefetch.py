"""When sharded weights are gathered (Algorithm 1, line 2): ahead of their use, in the order learnt from the first pass.

A pass is the forward and backward of one micro-batch. The first one notes which weights are used, in which order,
recomputation included. From that follows what has to be gathered with any cache, so that neither the cache nor the
flags, when they change, are a reason to learn again. Later passes keep the next few gathers in flight (OAG, axonn-sc24
V-D), also from the end of one micro-batch to the beginning of the next. If a pass departs from the order, what is in
flight is waited for and dropped, the rest of the pass gathers as it goes, and the next pass learns again: slower, never
wrong.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from enum import Enum, auto

import torch
from torch import Tensor

from engine.comm.funnel import Comm, Handle, Kind, Lane
from engine.grid import SHARDING
from engine.overlap.flags import Overlap
from engine.overlap.weight import Casts, ShardedWeight, gathered_bytes

log = logging.getLogger(__name__)


class Pass(Enum):
    """How the present pass gathers."""

    NONE = auto()
    """There is none: a weight is gathered when it is used."""
    SYNCHRONOUS = auto()
    """A weight is gathered when it is used; the cache keeps those that it is told to."""
    LEARNING = auto()
    """The same, and the order of uses is noted."""
    FOLLOWING = auto()
    """In the learnt order, with the next weights in flight."""


def gathers(uses: Iterable[ShardedWeight], cached: Collection[ShardedWeight]) -> list[ShardedWeight]:
    """What a pass of these uses has to gather: of a cached weight every other use takes what was kept from the last."""
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


class Prefetch:
    """Gathers one model's weights. casts: of those that aren't sharded; dtype: in which they are used.

    most_ahead_bytes, most_kept_bytes: the most memory that prefetched and cached weights have taken at once since the
    last switch().
    """

    def __init__(self, comm: Comm, casts: Casts, dtype: torch.dtype, overlap: Overlap) -> None:
        self._comm, self._casts, self._dtype = comm, casts, dtype
        self._pass = Pass.NONE
        self._uses: list[ShardedWeight] = []
        """Those of a pass, in their order; empty until one has been learnt."""
        self._position = 0
        """Of the next use, when the order is followed."""
        self._planned: deque[ShardedWeight] = deque()
        """What is still to be issued: for this pass and, unless it is the step's last, the beginning of the next."""
        self._ahead: deque[tuple[ShardedWeight, Handle]] = deque()
        """In flight: the next gathers of the pass."""
        self._cached: frozenset[ShardedWeight] = frozenset()
        self._kept: dict[ShardedWeight, Tensor] = {}
        """Those of the cached that have been gathered and not been used again."""
        self._warned = False
        self.switch(overlap)

    def switch(self, overlap: Overlap) -> None:
        """Between steps: gather as these flags say. What was learnt stays."""
        self._overlap = overlap
        self.most_ahead_bytes = self.most_kept_bytes = 0

    def cache(self, weights: Collection[ShardedWeight]) -> None:
        """Between steps: keep each of these from a gather to its next use in the pass, which needs none."""
        self._cached = frozenset(weights)

    def start_pass(self, *, last: bool) -> None:
        """A forward begins. Unless it is the step's last, its end already gathers for the next one's beginning."""
        self._end_pass()
        if not self._uses:
            self._pass = Pass.LEARNING
        elif not self._overlap.oag:
            self._pass = Pass.SYNCHRONOUS
        else:
            self._pass = Pass.FOLLOWING
            self._position = 0
            own = gathers(self._uses, self._cached)
            next_ones = [] if last else own[: self._overlap.prefetch_depth]
            self._planned = deque((own + next_ones)[len(self._ahead) :])
            self._issue_ahead()

    def end_step(self) -> None:
        """The last backward is over. The weights are about to change: nothing that is gathered may be used again."""
        self._end_pass()
        self._drop_ahead()

    def abort(self) -> None:
        """Leave a pass as it is, and forget what it has gathered, once Comm.abandon() has waited for all of it."""
        if self._pass is Pass.LEARNING:
            self._uses = []
        self._ahead.clear()
        self._leave_pass()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Gathers in here belong to no pass, even in the middle of one."""
        interrupted, self._pass = self._pass, Pass.NONE
        try:
            yield
        finally:
            self._pass = interrupted

    def gather(self, weight: ShardedWeight) -> Tensor:
        """The flat elements of the weight's tile in the compute dtype."""
        if self._comm.grid.shards == 1:
            return self._casts.of(weight.shard)
        if self._pass is Pass.NONE:
            return self._issue(weight, at_once=True).wait()
        self._note_use(weight)
        if weight in self._kept:
            return self._kept.pop(weight)
        gathered = self._next(weight)
        if weight in self._cached:
            self._kept[weight] = gathered
            self.most_kept_bytes = max(self.most_kept_bytes, gathered_bytes(self._kept, self._dtype))
        return gathered

    def _note_use(self, weight: ShardedWeight) -> None:
        if self._pass is Pass.LEARNING:
            self._uses.append(weight)
        elif self._pass is Pass.FOLLOWING:
            if self._position == len(self._uses) or self._uses[self._position] is not weight:
                self._depart(weight)
            self._position += 1

    def _next(self, weight: ShardedWeight) -> Tensor:
        """The tile; where the order is followed, those that come after it are issued before it is waited for."""
        if self._pass is not Pass.FOLLOWING:
            return self._issue(weight, at_once=True).wait()
        _, handle = self._ahead.popleft()
        self._issue_ahead()
        return handle.wait()

    def _issue_ahead(self) -> None:
        while self._planned and len(self._ahead) < self._overlap.prefetch_depth:
            weight = self._planned.popleft()
            self._ahead.append((weight, self._issue(weight, at_once=False)))
        ahead_bytes = gathered_bytes((weight for weight, _ in self._ahead), self._dtype)
        self.most_ahead_bytes = max(self.most_ahead_bytes, ahead_bytes)

    def _issue(self, weight: ShardedWeight, *, at_once: bool) -> Handle:
        # Cast before it travels, not after. To keep what is cast would take as much memory as a tenth of the state, and
        # save a rank of a large grid milliseconds of a step of seconds.
        shard = weight.shard.detach().to(self._dtype)
        return self._comm.issue(Kind.ALL_GATHER, SHARDING, shard, lane=Lane.GATHER, at_once=at_once)

    def _end_pass(self) -> None:
        if self._pass is Pass.FOLLOWING and self._position < len(self._uses):
            self._depart(self._uses[self._position])
        self._leave_pass()

    def _leave_pass(self) -> None:
        self._pass = Pass.NONE
        self._kept.clear()

    def _depart(self, weight: ShardedWeight) -> None:
        """This pass doesn't follow the order any longer: at this weight it went another way, or ended."""
        self._drop_ahead()
        self._uses = []
        self._pass = Pass.SYNCHRONOUS
        if not self._warned:
            self._warned = True
            log.warning(
                "%s was used in another order than in the step before: this pass gathers without prefetching, and the "
                "next one learns the order again.",
                weight.placement.name,
            )

    def _drop_ahead(self) -> None:
        while self._ahead:
            self._ahead.popleft()[1].wait()
