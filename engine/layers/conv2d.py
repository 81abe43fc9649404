"""Convolution on the grid: Algorithm 1 of axonn-sc24, with channels as k and n (par4d III), and skips around blocks.

Its weight [n, k, height, width] is split and sharded as a linear layer's, and whole images are its rows. cuDNN's choice
by timing stays off, as ranks that repeat one another's work have to round alike. Images lie plane by plane:
channels_last was 3 to 4 % faster in small networks on an AMD EPYC, but 28 % slower in bf16, and is untried on a GPU.

A skip goes from the residual stream to the residual stream, which y splits. It is a normal convolution, of whose output
each rank of x has a part of what each rank of y needs: a reduce-scatter over y sums that and gives it to its owner, and
the sum over x that ends the block puts the parts together, without a collective of its own.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.grid import Axis
from engine.layers.linear import AddBias, Linear, all_reduce
from engine.overlap.schedule import WeightSchedule
from engine.overlap.weight import ShardedWeight


class Conv2dFunction(torch.autograd.Function):
    """Lines 2-3 and 9-15 of Algorithm 1 in the order of Matmul3D: [B, K, H, W] to [B, N, H', W']."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, shard: Tensor, bias: nn.Parameter | None, layer: "Conv2d") -> Tensor:
        W = layer.schedule.gather(layer.sharded)  # line 2: all-gather over z
        ctx.save_for_backward(inputs, W if layer.schedule.keeps(layer.sharded) else None)  # line 5
        ctx.layer = layer
        bias_N = None if bias is None else layer.schedule.cast(bias)
        return F.conv2d(inputs, W, bias_N, layer.stride, layer.padding)  # line 3

    @staticmethod
    def backward(ctx: Any, dO: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        inputs, W = ctx.saved_tensors  # line 10
        layer: Conv2d = ctx.layer
        schedule, reduction = layer.schedule, None
        needs_dI, _, needs_dbias, _ = ctx.needs_input_grad
        dI = dbias_N = None
        if needs_dI and W is None:
            W = schedule.gather(layer.sharded)
        # One call makes all that nothing is to be hidden behind, or rounded.
        dI_apart = needs_dI and (layer.out_ranks > 1 or schedule.deferring)
        dbias_apart = needs_dbias and (schedule.deferring or layer.weight.dtype != dO.dtype)
        if dI_apart:
            dI = _gradients(dO, inputs, W, layer, (True, False, False))[0]  # line 11
            dI = dI if layer.out_ranks == 1 else dI.contiguous()
            reduction = layer.start_sum(dI)  # line 12

        def fill(out: Tensor, *, add: bool) -> None:
            nonlocal dI, dbias_N
            asked = needs_dI and not dI_apart, True, needs_dbias and not dbias_apart
            made = _gradients(dO, inputs, out if W is None else W, layer, asked)
            dI, dbias_N = (dI if dI_apart else made[0]), made[2]
            out.add_(made[1]) if add else out.copy_(made[1])

        schedule.accumulate(layer.sharded, fill)  # lines 13-14: product and reduce-scatter over z
        if dbias_apart:
            dbias_N = dO.sum(dim=(0, 2, 3), dtype=layer.weight.dtype)
        if reduction is not None:
            reduction.wait(unavoidable=True)  # OAR (V-D): behind all that doesn't need it
        return dI, None, dbias_N, None


def _gradients(dO: Tensor, inputs: Tensor, W: Tensor, layer: "Conv2d", asked: tuple[bool, bool, bool]) -> list[Tensor]:
    """Compute those asked for of dI, dW and the bias's; but for dI, only the shape of W is needed."""
    return torch.ops.aten.convolution_backward.default(
        dO, inputs, W, [dO.shape[1]], layer.stride, layer.padding, (1, 1), False, (0, 0), 1, asked
    )


class Conv2d(Linear):
    """Convolution on the grid. In: [B, k / G(in axis), H, W], out: [B, n / G(out axis), H', W'], images over z and
    data.
    """

    def __init__(
        self,
        comm: Comm,
        schedule: WeightSchedule,
        sharded: ShardedWeight,
        bias: nn.Parameter | None,
        stride: tuple[int, int] = (1, 1),
        padding: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(comm, schedule, sharded, bias)
        self.stride, self.padding = stride, padding

    def forward(self, inputs: Tensor) -> Tensor:
        if self.in_ranks == 1:
            return self.partial(inputs, self.bias)
        return self.sum_partial(self.partial(inputs))

    def partial(self, inputs: Tensor, bias: nn.Parameter | None = None) -> Tensor:
        """Compute what ranks have to sum, or the whole on one rank."""
        return Conv2dFunction.apply(inputs.to(self.schedule.compute_dtype), self.weight, bias, self)

    def sum_partial(self, partial: Tensor) -> Tensor:
        """Sum what ranks have computed, in place, and add the bias."""
        output = all_reduce(partial.contiguous(), self.comm, self.in_axis)
        if self.bias is None:
            return output
        return AddBias.apply(output, self.bias, self.schedule.cast(self.bias).view(-1, 1, 1))


class Skip(nn.Conv2d):
    """Convolution whose output a Joining one adds."""


class Joining(nn.Conv2d):
    """Convolution that adds a skip of its output's shape."""

    def forward(self, images: Tensor, skip: Tensor | None = None) -> Tensor:
        convolved: Tensor = super().forward(images)
        return convolved if skip is None else skip + convolved


class _ScatterSum(torch.autograd.Function):
    """Sum of [B, n / Gx, H, W] over y, of which each rank keeps its part [B, n / (Gx Gy), H, W], with the bias [n /
    Gx].

    All of y get the same gradients.
    """

    @staticmethod
    def forward(
        ctx: Any, partial: Tensor, bias: nn.Parameter | None, cast: Tensor | None, comm: Comm, axis: Axis
    ) -> Tensor:
        ctx.comm, ctx.axis, ctx.dtype = comm, axis, None if bias is None else bias.dtype
        parts_GBSHW = partial.unflatten(1, (comm.grid[axis], -1)).movedim(1, 0).contiguous()
        part = comm.run(Kind.REDUCE_SCATTER, axis, parts_GBSHW.view(-1)).view(parts_GBSHW.shape[1:])
        return part if cast is None else part.add_(cast.chunk(comm.grid[axis])[comm.coords[axis]].view(-1, 1, 1))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        comm, axis = ctx.comm, ctx.axis
        gathered = comm.run(Kind.ALL_GATHER, axis, gradient.contiguous().view(-1))
        whole = gathered.view(comm.grid[axis], *gradient.shape).movedim(0, 1).flatten(1, 2)
        return whole, None if ctx.dtype is None else whole.sum(dim=(0, 2, 3), dtype=ctx.dtype), None, None, None


class SkipOnGrid(Conv2d):
    """Skip on the grid. Out: [B, n / (Gx Gy), H', W']. Its weight and bias are sliced (placement.py)."""

    def forward(self, inputs: Tensor) -> Tensor:
        if self.in_axis is None or self.in_ranks == 1:
            return self.partial(inputs, self.bias)
        cast = None if self.bias is None else self.schedule.cast(self.bias)
        return _ScatterSum.apply(self.partial(inputs), self.bias, cast, self.comm, self.in_axis)


class _AddPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, part: Tensor, first: int) -> Tensor:
        ctx.mark_dirty(partial)
        ctx.place = first, part.shape[1]
        partial.narrow(1, *ctx.place).add_(part)
        return partial

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradient, gradient.narrow(1, *ctx.place), None


class JoiningOnGrid(Conv2d):
    """Convolution on the grid that adds each rank's part of a skip before it sums."""

    def forward(self, inputs: Tensor, skip: Tensor | None = None) -> Tensor:
        if skip is None:
            return super().forward(inputs)
        if self.in_axis is None or self.in_ranks == 1:
            return _AddPart.apply(self.partial(inputs, self.bias), skip, 0)
        partial = self.partial(inputs)
        return self.sum_partial(_AddPart.apply(partial, skip, self.comm.coords[self.in_axis] * skip.shape[1]))
