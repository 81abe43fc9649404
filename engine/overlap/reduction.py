"""Reduction of a rank's gradients in one flat buffer: sharded weights first, replicated parameters after them.

Every parameter's gradient is summed over exactly the axes that split rows, and those over which it is partial; layers
finish their sums over others before they return:

    sharded weights: a reduce-scatter each (Algorithm 1, line 14), in flight during the next layers' backward
    replicated parameters: one all-reduce a step over the axis that shards the others
    those with partial gradients: one more for each range of them that are partial over the same axes
    everything: summed over model replicas, at the end of the step or, in buckets, during its last backward, while the
    optimizer steps the bucket before (axonn-ipdps22 V-C)
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import prod
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm, Handle, Kind
from engine.grid import REPLICATING, SHARDING, Axis
from engine.overlap.flags import Overlap
from engine.overlap.weight import Flat, ShardedWeight
from engine.precision import Precision


class DataSum:
    """Sum of one flat gradient buffer over model replicas, in pieces [start, stop). dtype: in which they travel."""

    def __init__(self, comm: Comm, buffer: Tensor, dtype: torch.dtype) -> None:
        self._comm, self._buffer, self._dtype = comm, buffer, dtype
        self.bucket = torch.inf
        """elements that fill a bucket"""
        self._open: tuple[int, int] | None = None
        """piece that is being filled"""
        self._pending: deque[tuple[int, int, Handle]] = deque()

    def add(self, start: int, stop: int) -> None:
        """Add elements that are final on this rank. Neighbours travel together until they fill a bucket."""
        if self._open is not None and start == self._open[1]:
            self._open = (self._open[0], stop)
        elif self._open is not None and stop == self._open[0]:
            self._open = (start, self._open[1])
        else:
            self._issue()
            self._open = (start, stop)
        if self._open[1] - self._open[0] >= self.bucket:
            self._issue()

    def collect(self) -> Iterator[tuple[int, int]]:
        """Yield every piece once it is summed, in the order of issue."""
        self._issue()
        while self._pending:
            start, stop, handle = self._pending.popleft()
            summed = self._comm.sum(handle.wait(), REPLICATING[1:])
            self._buffer[start:stop].copy_(summed)  # costs nothing where the piece was summed in place
            yield start, stop

    def abort(self) -> None:
        """Forget all pieces, once Comm.abandon() has waited for those in flight."""
        self._open = None
        self._pending.clear()

    def _issue(self) -> None:
        if self._open is None:
            return
        (start, stop), self._open = self._open, None
        piece = self._buffer[start:stop]
        sent = piece.to(self._dtype) if self._comm.grid.model_replicas > 1 else piece
        self._pending.append((start, stop, self._comm.issue(Kind.ALL_REDUCE, REPLICATING[0], sent)))


OnSummed = Callable[[int, int], None]
"""Called for elements [start, stop) of the buffer that are final."""


class Fill(Protocol):
    """Writer of a layer's weight gradient into out, of the weight's tile_shape, or adder to what is there."""

    def __call__(self, out: Tensor, *, add: bool) -> None: ...


class GradientState(Enum):
    EMPTY = auto()
    """nothing written: the buffer holds the last step's"""
    PARTIAL = auto()
    """sum of the first contributions, landed or on their way"""
    HANDED_OVER = auto()
    """gone to the sum over replicas; late contributions are summed on their own, and added at the end"""


@dataclass(slots=True, eq=False)
class _Gradient:
    """Gradient of one weight. given: contributions of this backward so far, one for each use; usual: most of an earlier
    one.
    """

    start: int
    elements: Tensor
    """[start, stop) of the buffer"""
    tile: Tensor | None
    """the elements as a tile, if not sharded"""
    state: GradientState = GradientState.EMPTY
    given: int = 0
    usual: int = 0

    @property
    def stop(self) -> int:
        return self.start + self.elements.numel()


class Reduction:
    """Buffer of gradients, flat; each parameter's .grad is a view of it, final after finish()."""

    def __init__(
        self,
        comm: Comm,
        weights: Sequence[ShardedWeight],
        flat: Flat,
        precision: Precision,
        overlap: Overlap,
        partial: Mapping[nn.Parameter, tuple[Axis, ...]] = MappingProxyType({}),
    ) -> None:
        """Make the buffer. partial: axes of the replicated parameters whose gradients ranks have parts of."""
        self._comm = comm
        self._scattered, self._summed = precision.reduce(comm.grid.shards), precision.reduce(comm.grid.model_replicas)
        self.flat = flat.masters.new_zeros(len(flat), dtype=precision.gradient)
        self._places = flat
        self.restore_gradients()
        self._gradients: dict[ShardedWeight, _Gradient] = {}
        sharded = 0
        for weight in weights:
            start, sharded = flat.places[weight.shard]
            elements = self.flat[start:sharded]
            tile = weight.tile(elements) if comm.grid.shards == 1 else None
            self._gradients[weight] = _Gradient(start, elements, tile)
        self._replicated = self.flat[sharded:]
        self._partial = [
            (axes, self.flat[start:stop]) for axes, start, stop in flat.ranges(lambda p: partial.get(p, ())) if axes
        ]
        self._pending: deque[tuple[_Gradient, Handle]] = deque()
        """reduce-scatters in flight, in the order of issue"""
        self._late: list[tuple[_Gradient, Tensor]] = []
        self._early = False
        """whether whole gradients are handed over to the sum over replicas, in a step's last backward"""
        self._data_sum = DataSum(comm, self.flat, self._summed)
        self.switch(overlap)

    def restore_gradients(self) -> None:
        """Make each parameter's .grad, where it has none, its view of the buffer."""
        for parameter in self._places.places:
            if parameter.grad is None:
                set_gradient(parameter, self._places.view(self.flat, parameter))

    def switch(self, overlap: Overlap) -> None:
        """Reduce as these flags say, from the next step on."""
        self._overlap = overlap
        self._hands_over_early = overlap.data and self._comm.grid.model_replicas > 1
        bucket = overlap.bucket(self._comm.grid)
        self._data_sum.bucket = bucket / self._summed.itemsize if self._hands_over_early else torch.inf

    def start_step(self) -> None:
        """Zero the gradients that aren't sharded: those are overwritten by their first contribution."""
        self._replicated.zero_()
        self._late.clear()
        for gradient in self._gradients.values():
            gradient.state = GradientState.EMPTY

    def start_backward(self, *, last: bool) -> None:
        """Begin a pass's backward; after the step's last one a gradient is final within a model replica."""
        self._early = self._hands_over_early and last
        for gradient in self._gradients.values():
            gradient.usual, gradient.given = max(gradient.usual, gradient.given), 0

    def abort(self) -> None:
        """Leave a step as it is, once Comm.abandon() has waited for what is in flight."""
        self._pending.clear()
        self._data_sum.abort()

    def accumulate(self, weight: ShardedWeight, fill: Fill, dtype: torch.dtype) -> None:
        """Add a layer's gradient of this rank's rows, made by fill in that dtype, to the weight's.

        Ranks that split rows are summed and scattered over shards, micro-batches in the dtype of the buffer.
        """
        gradient = self._gradients[weight]
        gradient.given += 1
        state, tile = gradient.state, gradient.tile
        if tile is not None and dtype == tile.dtype and state is not GradientState.HANDED_OVER:
            fill(tile, add=state is GradientState.PARTIAL)
            gradient.state = GradientState.PARTIAL
            if self._early:
                self._hand_over_if_whole(gradient)
            return
        contribution = gradient.elements.new_empty(len(gradient.elements) * self._comm.grid.shards, dtype=dtype)
        if (numel := prod(weight.tile_shape)) < len(contribution):
            contribution[numel:].zero_()
        fill(weight.tile(contribution), add=False)
        flat = contribution.to(self._scattered)
        out = None
        if gradient.state is GradientState.EMPTY and flat.dtype == gradient.elements.dtype:
            out, gradient.state = gradient.elements, GradientState.PARTIAL
        window = self._overlap.reduce_window if self._overlap.ors and self._comm.grid.shards > 1 else 0
        handle = self._comm.issue(Kind.REDUCE_SCATTER, SHARDING, flat, out=out, at_once=window == 0)
        self._pending.append((gradient, handle))
        self._land(window)

    def finish(self, on_summed: OnSummed | None = None) -> None:
        """End a step, after the backward of its last micro-batch: every gradient is final.

        on_summed: called with each piece once it is summed, while later pieces are in flight.
        """
        shared = self._comm.issue(Kind.ALL_REDUCE, SHARDING, self._replicated) if self._replicated.numel() else None
        self._land(0)
        for gradient in self._gradients.values():
            if gradient.state is GradientState.EMPTY:
                gradient.elements.zero_()
            if gradient.state is not GradientState.HANDED_OVER:
                self._hand_over(gradient)
        if shared is not None:
            shared.wait()
            for axes, elements in self._partial:
                self._comm.sum(elements, axes)
            self._data_sum.add(len(self.flat) - len(self._replicated), len(self.flat))
        late = [(gradient, self._comm.sum(shard, REPLICATING)) for gradient, shard in self._late]
        for start, stop in self._data_sum.collect():
            for gradient, shard in late:
                if start <= gradient.start < stop:
                    gradient.elements.add_(shard)
            if on_summed is not None:
                on_summed(start, stop)

    def _land(self, window: int) -> None:
        """Take in the oldest reduce-scatters until at most window are in flight (ORS, axonn-sc24 V-D)."""
        while len(self._pending) > window:
            gradient, handle = self._pending.popleft()
            shard = handle.wait()
            if gradient.state is GradientState.HANDED_OVER:
                self._late.append((gradient, shard.to(gradient.elements.dtype)))
                continue
            if gradient.state is GradientState.EMPTY:
                gradient.elements.copy_(shard)
                gradient.state = GradientState.PARTIAL
            elif shard is not gradient.elements:
                gradient.elements.add_(shard)
            if self._early:
                self._hand_over_if_whole(gradient)

    def _hand_over_if_whole(self, gradient: _Gradient) -> None:
        """In the last backward, begin the sum over replicas once all has landed that a backward usually gives."""
        given = 0 < gradient.usual <= gradient.given
        if given and all(other is not gradient for other, _ in self._pending):
            self._hand_over(gradient)

    def _hand_over(self, gradient: _Gradient) -> None:
        gradient.state = GradientState.HANDED_OVER
        self._data_sum.add(gradient.start, gradient.stop)


def set_gradient(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Set .grad, wherever the parameter lies and in whatever dtype, as PyTorch takes only what is like its data."""
    where, parameter.data = parameter.data, gradient
    parameter.grad = gradient
    parameter.data = where
