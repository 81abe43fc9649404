"""The gradients of a rank, in one flat buffer: sharded weights first, replicated parameters after them.

Every parameter's gradient is summed over exactly z and data, the axes that split the batch; layers finish their sums
over x and y before they return:

    sharded weights: a reduce-scatter over z each (Algorithm 1, line 14), in flight during the next layers' backward
    replicated parameters: one all-reduce over z a step
    everything: all-reduced over data, at the end of the step or, in buckets, during its last backward
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm, Handle, Kind
from engine.grid import Axis
from engine.overlap.data_sum import Buckets
from engine.overlap.flags import Overlap
from engine.overlap.weight import WeightBlock
from engine.precision import Precision

Fill = Callable[[Tensor, bool], None]
"""fill(out [n, k], add): write a layer's gradient into out, or add it to what is there."""
OnSummed = Callable[[Sequence[nn.Parameter]], None]


@dataclass(slots=True)
class _State:
    """Of one weight's gradient. given: contributions of this pass; usual: the most that a pass had so far.

    untouched: nothing written yet in this step. summed: handed over to the sum over data.
    """

    start: int
    stop: int
    usual: int = 0
    given: int = 0
    untouched: bool = True
    summed: bool = False


@dataclass(frozen=True, slots=True)
class _Flight:
    """A reduce-scatter. in_place: into the gradient itself. last: nothing more will come for this weight."""

    block: WeightBlock
    handle: Handle
    in_place: bool
    last: bool


class Gradients:
    """Owns the buffer; each parameter's .grad is a view of it, final after finish()."""

    def __init__(
        self,
        comm: Comm,
        blocks: Sequence[WeightBlock],
        replicated: Sequence[nn.Parameter],
        precision: Precision,
        overlap: Overlap,
    ) -> None:
        self._comm, self._precision, self._overlap = comm, precision, overlap
        self._parameters = [block.shard for block in blocks] + list(replicated)
        sharded = sum(block.shard.numel() for block in blocks)
        like = blocks[0].shard
        self.buffer = like.new_zeros(sum(p.numel() for p in self._parameters), requires_grad=False)
        self._replicated = self.buffer[sharded:]
        self._states: dict[WeightBlock, _State] = {}
        self._flights: deque[_Flight] = deque()
        self._late: list[tuple[WeightBlock, Tensor]] = []
        self._last_pass = False
        split = overlap.data and comm.grid.data > 1
        bucket = overlap.bucket_bytes / precision.reduce.itemsize if split else torch.inf
        self._buckets = Buckets(comm, self.buffer, precision.reduce, bucket)
        offsets = [0, *accumulate(parameter.numel() for parameter in self._parameters)]
        for parameter, (start, stop) in zip(self._parameters, pairwise(offsets), strict=True):
            parameter.grad = self.buffer[start:stop].view(parameter.shape)
        for block, (start, stop) in zip(blocks, pairwise(offsets), strict=False):
            block.gradient = self.buffer[start:stop]
            self._states[block] = _State(start, stop)
        self._starts = offsets[:-1]

    def start_step(self) -> None:
        """Sharded gradients are overwritten by their first contribution, so only the rest is zeroed."""
        self._replicated.zero_()
        for state in self._states.values():
            state.untouched, state.summed, state.given = True, False, 0

    def start_pass(self, *, last: bool) -> None:
        """A micro-batch begins; after the last one's backward a gradient is final over z."""
        self._last_pass = last
        self._count()

    def abort(self) -> None:
        """Leave a step as it is; what is in flight is somebody else's care."""
        self._flights.clear()
        self._buckets.abort()
        self._late.clear()

    def accumulate(self, block: WeightBlock, fill: Fill, dtype: torch.dtype) -> None:
        """Add a layer's gradient of this rank's rows, made by fill in that dtype, to the block's, summed over z.

        Micro-batches are summed in the master dtype.
        """
        state = self._states[block]
        state.given += 1
        last = self._overlap.data and self._last_pass and state.given == state.usual
        if self._comm.grid.z == 1 and dtype == block.shard.dtype and not state.summed:
            fill(block.gradient.view(block.shape), not state.untouched)
            state.untouched = False
            if last:
                self._sum(state)
            return
        gradient = block.gradient.new_empty(block.shape, dtype=dtype)
        fill(gradient, False)
        flat = gradient.view(-1).to(self._precision.reduce)
        in_place = state.untouched and not state.summed and flat.dtype == block.gradient.dtype
        out = block.gradient if in_place else None
        handle = self._comm.issue(Kind.REDUCE_SCATTER, Axis.Z, flat, out=out)
        if in_place:
            state.untouched = False
        self._flights.append(_Flight(block, handle, in_place, last))
        self._retire(self._overlap.reduce_window if self._overlap.ors and self._comm.grid.z > 1 else 0)

    def finish(self, on_summed: OnSummed | None = None) -> None:
        """End a step, after the backward of its last micro-batch: every gradient is final.

        on_summed: called with the parameters of each piece once it is summed, while later pieces are in flight.
        """
        shared = self._issue_replicated()
        self._retire(0)
        shared.wait()
        self._count()
        for state in self._states.values():
            if state.untouched:
                self.buffer[state.start : state.stop].zero_()
            if not state.summed:
                self._sum(state)
        if self._replicated.numel():
            self._buckets.add(self.buffer.numel() - self._replicated.numel(), self.buffer.numel())
        late = [(block, self._comm.run(Kind.ALL_REDUCE, Axis.DATA, shard)) for block, shard in self._late]
        self._late.clear()
        for start, stop in self._buckets.collect():
            for block, shard in late:
                if start <= self._states[block].start < stop:
                    block.gradient.add_(shard)
            if on_summed is not None:
                on_summed(self._within(start, stop))

    def _issue_replicated(self) -> Handle:
        if self._replicated.numel():
            return self._comm.issue(Kind.ALL_REDUCE, Axis.Z, self._replicated)
        return Handle(self._replicated)

    def _retire(self, window: int) -> None:
        """Take in the oldest reduce-scatters until only so many are in flight (ORS, axonn-sc24 V-D)."""
        while len(self._flights) > window:
            flight = self._flights.popleft()
            block, shard, state = flight.block, flight.handle.wait(), self._states[flight.block]
            if state.summed:
                self._late.append((block, shard.to(block.gradient.dtype, copy=True)))
            elif not flight.in_place:
                block.gradient.copy_(shard) if state.untouched else block.gradient.add_(shard)
                state.untouched = False
            if flight.last:
                self._sum(state)

    def _sum(self, state: _State) -> None:
        state.summed = True
        self._buckets.add(state.start, state.stop)

    def _count(self) -> None:
        """A pass is over. A weight that now has more contributions than a pass before had is known to have them."""
        for state in self._states.values():
            state.usual, state.given = max(state.usual, state.given), 0

    def _within(self, start: int, stop: int) -> list[nn.Parameter]:
        """The parameters whose elements are there; a piece never cuts one."""
        return [p for p, first in zip(self._parameters, self._starts, strict=True) if start <= first < stop]
