"""The gradients of a rank, in one flat buffer: sharded weights first, replicated parameters after them.

Every parameter's gradient is summed over exactly z and data, the axes that split the batch; layers finish their sums
over x and y before they return. Sharded weights come out of their reduce-scatter summed over z, so that is left:

    replicated: one all-reduce over z a step        everything: one all-reduce over data a step
"""

from collections.abc import Sequence

import torch
from torch import nn

from engine.comm import Comm, Kind
from engine.grid import Axis
from engine.schedule import WeightBlock


class Gradients:
    """Owns the buffer; each parameter's .grad is a view of it. dtype: in which it is summed over data."""

    def __init__(
        self, comm: Comm, blocks: Sequence[WeightBlock], replicated: Sequence[nn.Parameter], dtype: torch.dtype
    ) -> None:
        self._comm = comm
        self._dtype = dtype
        self._blocks = blocks
        sharded = sum(block.shard.numel() for block in blocks)
        like = blocks[0].shard
        self.buffer = like.new_zeros(sharded + sum(p.numel() for p in replicated), requires_grad=False)
        self._replicated = self.buffer[sharded:]
        start = 0
        for parameter in [block.shard for block in blocks] + list(replicated):
            parameter.grad = self.buffer[start : start + parameter.numel()].view(parameter.shape)
            start += parameter.numel()
        for block in blocks:
            assert block.shard.grad is not None
            block.gradient = block.shard.grad

    def clear(self) -> None:
        """Start a step: sharded gradients are overwritten by their first contribution, so only the rest is zeroed."""
        self._replicated.zero_()
        for block in self._blocks:
            block.untouched = True

    @torch.no_grad()
    def reduce(self) -> None:
        """End a step, after the backward of its last micro-batch."""
        for block in self._blocks:
            if block.untouched:
                block.gradient.zero_()
        if self._replicated.numel():
            self._comm.run(Kind.ALL_REDUCE, Axis.Z, self._replicated)
        if self._comm.grid.data > 1 and self._dtype != self.buffer.dtype:
            self.buffer.copy_(self._comm.run(Kind.ALL_REDUCE, Axis.DATA, self.buffer.to(self._dtype)))
        else:
            self._comm.run(Kind.ALL_REDUCE, Axis.DATA, self.buffer)
