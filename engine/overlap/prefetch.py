"""When weights are gathered over z (Algorithm 1, line 2): ahead of their use, in the order learnt from the first pass.

A pass is the forward and backward of one micro-batch. The first one notes which weights were really gathered, in
which order, recomputation included; later ones keep the next few in flight (OAG, axonn-sc24 V-D), also from the end
of one micro-batch to the beginning of the next. If a pass departs from that order, what is in flight is waited for and
dropped, the rest of the pass gathers as it goes, and the next pass learns again: slower, never wrong.
"""

import logging
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from engine.comm.funnel import Comm, Handle, Kind, Lane
from engine.grid import Axis
from engine.overlap.flags import Overlap
from engine.overlap.weight import WeightBlock

log = logging.getLogger(__name__)


class Gathers:
    """Gathers one model's weights. dtype: in which they travel.

    most_ahead_bytes, most_kept_bytes: the most memory that prefetched and cached weights have taken at once.
    """

    def __init__(self, comm: Comm, dtype: torch.dtype, overlap: Overlap) -> None:
        self._comm, self._dtype, self._overlap = comm, dtype, overlap
        self._order: list[WeightBlock] | None = None
        self._learnt: list[WeightBlock] | None = None
        self._position: int | None = None
        """The place in the order of the next gather; None in a pass that doesn't follow it."""
        self._ahead: deque[tuple[WeightBlock, Handle]] = deque()
        self._aside = self._told = self._last_pass = False
        self._cached: frozenset[WeightBlock] = frozenset()
        self._used: set[WeightBlock] = set()
        self._kept: dict[WeightBlock, Tensor] = {}
        self.most_ahead_bytes = self.most_kept_bytes = 0

    def cache(self, blocks: Collection[WeightBlock]) -> None:
        """From the next pass on, keep these from their first gather of a pass to the second, which is then none."""
        if self._cached != frozenset(blocks):
            self._drop_ahead()
            self._cached = frozenset(blocks)
            self._order = self._learnt = None

    def start_pass(self, *, last: bool) -> None:
        """A forward begins. Unless it is the step's last, its end already gathers for the next one's beginning."""
        self._end_pass(whole=True)
        self._last_pass = last
        if self._order is None:
            self._learnt = []
        else:
            self._position = 0
            self._issue_ahead()

    def end_step(self) -> None:
        """The last backward is over. The weights are about to change: nothing that is gathered may be used again."""
        self._end_pass(whole=True)
        self._drop_ahead()

    def abort(self) -> None:
        """Leave a pass as it is, and forget what it has gathered; what is in flight is somebody else's care."""
        self._end_pass(whole=False)
        self._ahead.clear()

    def _end_pass(self, *, whole: bool) -> None:
        if whole and self._learnt and self._overlap.oag:
            self._order = self._learnt
        if whole and self._order is not None and self._position is not None and self._position < len(self._order):
            self._lose_order(self._order[self._position])
        self._learnt = self._position = None
        self._kept.clear()
        self._used.clear()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Gathers in here belong to no pass: an evaluation."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    def gather(self, block: WeightBlock) -> Tensor:
        """The block's flat elements in the compute dtype."""
        if self._comm.grid.z == 1:
            return block.shard.detach().to(self._dtype)
        if self._aside:
            return self._fetch(block).wait()
        if block in self._kept:
            return self._kept.pop(block)
        weight = self._in_order(block)
        if block in self._cached and block not in self._used:
            self._used.add(block)
            self._kept[block] = weight
            self.most_kept_bytes = max(self.most_kept_bytes, sum(kept.nbytes for kept in self._kept.values()))
        return weight

    def _in_order(self, block: WeightBlock) -> Tensor:
        """The weight, and those that come after it are issued before it is waited for."""
        if self._learnt is not None:
            self._learnt.append(block)
        if self._position is not None and self._order is not None:
            if self._order[self._position : self._position + 1] == [block]:
                first, handle = self._ahead.popleft() if self._ahead else (block, self._fetch(block))
                assert first is block
                self._position += 1
                self._issue_ahead()
                return handle.wait()
            self._lose_order(block)
        return self._fetch(block).wait()

    def _issue_ahead(self) -> None:
        assert self._order is not None
        assert self._position is not None
        depth = self._overlap.prefetch_depth
        upcoming = self._order[self._position :] + ([] if self._last_pass else self._order[:depth])
        for block in upcoming[len(self._ahead) : depth]:
            self._ahead.append((block, self._fetch(block)))
        ahead = sum(block.gathered_bytes(self._dtype) for block, _ in self._ahead)
        self.most_ahead_bytes = max(self.most_ahead_bytes, ahead)

    def _lose_order(self, block: WeightBlock) -> None:
        self._drop_ahead()
        self._order = self._position = None
        if not self._told:
            self._told = True
            log.warning(
                "%s was used in another order than in the step before: this pass gathers without prefetching, and the "
                "next one learns the order again.",
                block.placement.name,
            )

    def _drop_ahead(self) -> None:
        while self._ahead:
            self._ahead.popleft()[1].wait()

    def _fetch(self, block: WeightBlock) -> Handle:
        # Cast before it travels, not after.
        shard = block.shard.detach().to(self._dtype)
        return self._comm.issue(Kind.ALL_GATHER, Axis.Z, shard, lane=Lane.GATHER)
