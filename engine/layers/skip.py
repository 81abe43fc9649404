"""A residual block whose channels change takes a convolution of its input, a skip, to its sum, and all is one sum.

The skip goes from the residual stream to the residual stream, which y splits. It is a normal convolution, of whose
output each rank of x has a part of what each rank of y needs: a reduce-scatter over y sums that and gives it to whom it
belongs, and the sum over x that the block ends with puts the parts together, without a collective of its own.
"""

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.grid import Axis
from engine.layers.conv2d import Conv2d


class Skip(nn.Conv2d):
    """It is a convolution, to what a Joining one adds itself."""


class Joining(nn.Conv2d):
    """It is a convolution; skip: what is added to it, like its output."""

    def forward(self, images: Tensor, skip: Tensor | None = None) -> Tensor:
        convolved: Tensor = super().forward(images)
        return convolved if skip is None else skip + convolved


class _ScatterSum(torch.autograd.Function):
    """It maps [B, n / Gx, H, W] to [B, n / (Gx Gy), H, W]: it sums over y, of which each rank keeps its part, and adds
    the bias [n / Gx]. All of y get the same gradients.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, partial: Tensor, bias: nn.Parameter | None, cast: Tensor | None, comm: Comm, axis: Axis
    ) -> Tensor:
        ctx.comm, ctx.axis, ctx.dtype = comm, axis, None if bias is None else bias.dtype
        parts_GBSHW = partial.unflatten(1, (comm.grid[axis], -1)).movedim(1, 0).contiguous()
        part = comm.run(Kind.REDUCE_SCATTER, axis, parts_GBSHW.view(-1)).view(parts_GBSHW.shape[1:])
        return part if cast is None else part.add_(cast.chunk(comm.grid[axis])[comm.coords[axis]].view(-1, 1, 1))

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:  # type: ignore[no-untyped-def]
        comm, axis = ctx.comm, ctx.axis
        gathered = comm.run(Kind.ALL_GATHER, axis, gradient.contiguous().view(-1))
        whole = gathered.view(comm.grid[axis], *gradient.shape).movedim(0, 1).flatten(1, 2)
        return whole, None if ctx.dtype is None else whole.sum(dim=(0, 2, 3), dtype=ctx.dtype), None, None, None


class SkipOnGrid(Conv2d):
    """It is a skip on the grid. Out: [B, n / (Gx Gy), H', W']. Its weight and bias are sliced (placement.py)."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [B, K, H, W] to this rank's part of the stream's channels."""
        if self.in_axis is None or self.in_ranks == 1:
            return self.partial(inputs, self.bias)
        cast = None if self.bias is None else self.schedule.cast(self.bias)
        return _ScatterSum.apply(self.partial(inputs), self.bias, cast, self.comm, self.in_axis)


class _AddPart(torch.autograd.Function):
    """It adds channels to those of a sum from the first one on, in place."""

    @staticmethod
    def forward(ctx, partial: Tensor, part: Tensor, first: int) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.mark_dirty(partial)
        ctx.place = first, part.shape[1]
        partial.narrow(1, *ctx.place).add_(part)
        return partial

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[no-untyped-def]
        return gradient, gradient.narrow(1, *ctx.place), None


class JoiningOnGrid(Conv2d):
    """It is a convolution on the grid that adds each rank's part of a skip before it sums."""

    def forward(self, inputs: Tensor, skip: Tensor | None = None) -> Tensor:
        """Map [B, K, H, W] to [B, N, H', W']."""
        if skip is None:
            return super().forward(inputs)
        if self.in_axis is None or self.in_ranks == 1:
            return _AddPart.apply(self.partial(inputs, self.bias), skip, 0)
        partial = self.partial(inputs)
        return self.summed(_AddPart.apply(partial, skip, self.comm.coords[self.in_axis] * skip.shape[1]))
