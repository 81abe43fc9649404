"""Conv2d is Algorithm 1 of axonn-sc24 for a convolution, whose k and n are its input and output channels (par4d III).

Its weight [n, k, height, width] is split and sharded as a linear layer's, and whole images are its rows. Of single
pixels PyTorch's kernel is a product for each image already: on an AMD EPYC about as fast as one by torch.matmul, both
ways, where rows of pixels, for which images are copied, took one to five times as long, most at 32 x 32. cuDNN's choice
by timing stays off, as ranks that repeat one another's work have to round alike.

Images lie plane by plane. In channels_last a step of plain PyTorch took, by the time of that on such a core, 0.96 to
0.97 in three small networks at 32 x 32, 1.01 and 1.02 in unet-vcluster and unet-50m, all in fp32, and 1.28 in bf16
(`par4d bench peers --peer plain --peer channels-last`); no GPU has been asked.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.comm.funnel import Comm
from engine.layers.linear import AddBias, Linear, all_reduce
from engine.overlap.schedule import WeightSchedule
from engine.overlap.weight import ShardedWeight


class Convolution(torch.autograd.Function):
    """It carries out lines 2-3 and 9-15 of Algorithm 1 in the order of Matmul3D: [B, K, H, W] to [B, N, H', W']."""

    @staticmethod
    def forward(ctx, inputs: Tensor, shard: Tensor, bias: nn.Parameter | None, layer: "Conv2d") -> Tensor:  # type: ignore[no-untyped-def]
        W = layer.schedule.gather(layer.sharded)  # line 2: all-gather over z
        ctx.save_for_backward(inputs, None if layer.schedule.gathers_again else W)  # line 5
        ctx.layer = layer
        bias_N = None if bias is None else layer.schedule.cast(bias)
        return F.conv2d(inputs, W, bias_N, layer.stride, layer.padding)  # line 3

    @staticmethod
    def backward(ctx, dO: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:  # type: ignore[no-untyped-def]
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
    """It is a convolution on the grid. In: [B, k / G(in axis), H, W], out: [B, n / G(out axis), H', W'], images over z
    and data.
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
        """Map [B, K, H, W], which may be data of another dtype, to [B, N, H', W']."""
        if self.in_ranks == 1:
            return self.partial(inputs, self.bias)
        return self.summed(self.partial(inputs))

    def partial(self, inputs: Tensor, bias: nn.Parameter | None = None) -> Tensor:
        """Compute what ranks have to sum, or all of it where they haven't."""
        return Convolution.apply(inputs.to(self.schedule.compute_dtype), self.weight, bias, self)

    def summed(self, partial: Tensor) -> Tensor:
        """Sum what ranks have computed, in place, and add the bias."""
        output = all_reduce(partial.contiguous(), self.comm, self.in_axis)
        if self.bias is None:
            return output
        return AddBias.apply(output, self.bias, self.schedule.cast(self.bias).view(-1, 1, 1))
