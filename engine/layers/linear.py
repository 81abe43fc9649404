"""Linear layer of the grid: Algorithm 1 of axonn-sc24.

O = I W with I [m, k] and W [k, n]; nn.Linear stores W as weight [n, k]. In a normal layer the axis x splits n and y
splits k, in a transposed layer they change places; rows of I are split over z and data. Line numbers are the paper's.
"""

from typing import Any

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm, Handle, Kind
from engine.grid import Axis
from engine.layers import matmul
from engine.layers.matmul import PLAIN, Kernels
from engine.overlap.schedule import WeightSchedule
from engine.overlap.weight import ShardedWeight


class Matmul3D(torch.autograd.Function):
    """Lines 2-3 and 9-15: everything of Algorithm 1 but the all-reduce of O (AllReduce).

    Maps [..., K] to [..., N]; rows are flattened in here, as autograd would take note of it outside.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, shard: Tensor, bias: nn.Parameter | None, layer: "Linear") -> Tensor:
        I_MK = inputs.detach().flatten(0, -2)  # as a view of inputs it would keep their graph
        W_NK = layer.schedule.gather(layer.sharded)  # line 2: all-gather over z
        ctx.save_for_backward(I_MK, W_NK if layer.schedule.keeps(layer.sharded) else None)  # line 5
        ctx.layer, ctx.shape = layer, inputs.shape
        bias_N = None if bias is None else layer.schedule.cast(bias)
        O_MN = matmul.forward(I_MK, W_NK, bias_N, layer.kernels.forward)  # line 3
        output = O_MN.view(*inputs.shape[:-1], W_NK.shape[0])
        return output.detach()  # for autograd no view, so that what comes next may write into it

    @staticmethod
    def backward(ctx: Any, dO: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        I_MK, W_NK = ctx.saved_tensors  # line 10
        layer: Linear = ctx.layer
        if W_NK is None and ctx.needs_input_grad[0]:
            W_NK = layer.schedule.gather(layer.sharded)
        dO_MN = dO.detach().flatten(0, -2)
        schedule, dI_MK, reduction = layer.schedule, None, None
        if ctx.needs_input_grad[0]:
            dI_MK = matmul.input_gradient(dO_MN, W_NK, layer.kernels.input_gradient)  # line 11
            reduction = layer.start_sum(dI_MK)  # line 12

        def fill(out: Tensor, *, add: bool) -> None:
            matmul.weight_gradient(out, dO_MN, I_MK, add=add, mode=layer.kernels.weight_gradient)

        schedule.accumulate(layer.sharded, fill, layer.gradient_dtype)  # lines 13-14: product and reduce-scatter over z
        dbias_N = dO_MN.sum(dim=0, dtype=layer.weight.dtype) if ctx.needs_input_grad[2] else None
        if reduction is not None:
            reduction.wait(unavoidable=True)  # OAR (V-D): behind all that doesn't need it
        # The shard's gradient is set by the schedule: autograd would copy a buffer that is still in flight.
        return None if dI_MK is None else dI_MK.view(ctx.shape), None, dbias_N, None


class AllReduce(torch.autograd.Function):
    """Line 4: the sum of O over the axis that splits k; its gradient is already the same on all of that axis.

    A function of its own, so that a checkpoint's early stop skips the block's last one in the recomputation.
    """

    @staticmethod
    def forward(ctx: Any, O_partial: Tensor, comm: Comm, axis: Axis) -> Tensor:
        ctx.mark_dirty(O_partial)
        return comm.run(Kind.ALL_REDUCE, axis, O_partial)

    @staticmethod
    def backward(ctx: Any, dO: Tensor) -> tuple[Tensor, None, None]:
        return dO, None, None


class AddBias(torch.autograd.Function):
    """Sum of O and the bias in place. The bias and its gradient are in the master dtype, and nothing is rounded.

    cast: the bias in the compute dtype, with as many dims behind its own as O has behind its features.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, bias: Tensor, cast: Tensor) -> Tensor:
        ctx.mark_dirty(output)
        features = output.dim() - cast.dim()
        ctx.dtype, ctx.rows = bias.dtype, [dim for dim in range(output.dim()) if dim != features]
        return output.add_(cast)

    @staticmethod
    def backward(ctx: Any, dO: Tensor) -> tuple[Tensor, Tensor, None]:
        return dO, dO.sum(dim=ctx.rows, dtype=ctx.dtype), None


def all_reduce(partial: Tensor, comm: Comm, axis: Axis | None) -> Tensor:
    """Sum partial results over an axis, in place; differentiable. Without an axis there is nothing to sum."""
    if axis is None or comm.grid[axis] == 1:
        return partial
    return AllReduce.apply(partial, comm, axis)


class ShardedLinear(nn.Module):
    """Weight of a linear layer on the grid, and how its products are made: base of the layers of all tensor modes.

    The weight's placement says which axis splits n and which k, if any. kernels: how it multiplies; as its weight is
    stored.

    What can be known before a step is found out here: between two large products each line of Python has fallen out of
    the processor's caches, and takes ten times as long as in a loop.
    """

    def __init__(
        self,
        comm: Comm,
        schedule: WeightSchedule,
        sharded: ShardedWeight,
        bias: nn.Parameter | None,
        kernels: Kernels = PLAIN,
    ) -> None:
        super().__init__()
        out_axis, in_axis = sharded.placement.split[:2]
        self.comm, self.schedule, self.sharded, self.kernels = comm, schedule, sharded, kernels
        self.out_axis, self.in_axis = out_axis, in_axis
        self.out_ranks, self.in_ranks = (1 if axis is None else comm.grid[axis] for axis in (out_axis, in_axis))
        compute, kept = schedule.compute_dtype, schedule.flat_gradients
        self.gradient_dtype = matmul.gradient_dtype(compute, kept.dtype, kept.device, shards=comm.grid.shards)
        self.weight = sharded.shard
        self.bias = bias

    def start(self, kind: Kind, axis: Axis, tensor: Tensor) -> Handle:
        """Start a collective behind what comes next, or without OAR wait for it at once."""
        if self.schedule.overlap.oar:
            return self.comm.issue(kind, axis, tensor)
        return Handle(self.comm.issue(kind, axis, tensor, at_once=True).wait())


class Linear(ShardedLinear):
    """Linear layer of Algorithm 1. In: [..., k / G(in axis)], out: [..., n / G(out axis)], rows over z and data.

    A bias [n / G(out axis)] is added once, after the reduction.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Map [..., K] to [..., N]."""
        if self.in_ranks == 1:
            return Matmul3D.apply(inputs, self.weight, self.bias, self)
        output = self.product(inputs)
        return output if self.bias is None else AddBias.apply(output, self.bias, self.schedule.cast(self.bias))

    def product(self, inputs: Tensor) -> Tensor:
        """Compute the output without its bias."""
        return all_reduce(Matmul3D.apply(inputs, self.weight, None, self), self.comm, self.in_axis)

    def start_sum(self, dI: Tensor) -> Handle | None:
        """Start line 12: sum dI over the axis that splits n, in place. Returns what is still to be waited for."""
        if self.out_axis is None or self.out_ranks == 1:
            return None
        return self.start(Kind.ALL_REDUCE, self.out_axis, dI)
