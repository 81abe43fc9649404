"""SUMMA: products of blocks on a square of ranks (van de Geijn and Watts 1997; Xu et al. 2021, colossal-ai 2.2).

x counts the columns of the square, y its rows. Activations lie on it alike everywhere: rows over y, features over x. So
does a weight [n, k], stored normal with n over x and k over y, or transposed with n over y and k over x, where that
sends less. Each of the three products of a layer is a sum of as many terms as the square has columns, by one of three
ways, of which a stored weight takes another one for each:

    outer    a panel of columns of the left factor goes along x, one of the right factor along y, and O adds them up
    along x  a panel of the weight goes along y, and what it gives is summed along x onto its column
    along y  a panel of activations goes along x, and what it gives is summed along y onto its row

With copies of the square along z or data it is 2.5D (Wang et al. 2022).
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm, Handle, Kind
from engine.grid import Axis
from engine.layers import matmul
from engine.layers.linear import AddBias, ShardedLinear
from engine.layers.local import Local
from engine.layers.loss import SerialCrossEntropy
from engine.layers.modes.split import SplitEnter, SplitLeave, cross_entropy, embedding
from engine.layers.redistribute import Enter, Leave, Redistribute


def panels(comm: Comm, axis: Axis, own: Tensor, *, ahead: bool) -> Iterator[Tensor]:
    """Yield the blocks of all ranks of an axis, of one shape, in their order. ahead: whether the next one is on its way
    while one is used.
    """
    lying = own if own.is_contiguous() else own.t()

    def send(number: int) -> Handle:
        block = lying if number == comm.coords[axis] else torch.empty_like(lying)
        return comm.issue(Kind.BROADCAST, axis, block, root=number, at_once=not ahead)

    coming = send(0)
    for number in range(comm.grid[axis]):
        block = coming.wait(unavoidable=number == 0 or not ahead)
        if number + 1 < comm.grid[axis]:
            coming = send(number + 1)
        yield block if own.is_contiguous() else block.t()


def sum_onto(comm: Comm, axis: Axis, partials: Iterator[Tensor], *, behind: bool) -> Tensor:
    """Sum the partial blocks of all ranks of an axis, each onto the rank of its number; returns this rank's. behind:
    whether a sum is on its way while the next block is made.
    """
    own, flying = None, None
    for number, partial in enumerate(partials):
        summing = comm.issue(Kind.REDUCE, axis, partial, root=number, at_once=not behind)
        own = partial if number == comm.coords[axis] else own
        if flying is not None:
            flying.wait()
        flying = summing
        if not behind:
            flying.wait(unavoidable=True)
            flying = None
    if flying is not None:
        flying.wait(unavoidable=True)
    assert own is not None
    return own


class SummaLinear(ShardedLinear):
    """Linear layer on a square, which gives a rank's own rows flat: [..., k / Gx] to [1, rows / Gy, n / Gx]."""

    def __init__(self, local: Local) -> None:
        super().__init__(
            local.comm, local.schedule, local.sharded["weight"], local.parameters.get("bias"), local.kernels
        )
        self.across = local.mode.stream.features
        (self.down,) = local.mode.stream.rows
        self.is_normal = self.out_axis is self.across
        """whether x splits n, and not k"""

    def forward(self, inputs: Tensor) -> Tensor:
        output = _Product.apply(inputs, self.weight, self)
        return output if self.bias is None else AddBias.apply(output, self.bias, self.schedule.cast(self.bias))

    def output(self, I_MK: Tensor, W_NK: Tensor) -> Tensor:
        if self.is_normal:
            return self._outer(I_MK, W_NK, lambda left, panel: (left, panel.t()))
        return self._along_x(W_NK, lambda panel: matmul.forward(I_MK, panel, None))

    def input_gradient(self, dO_MN: Tensor, W_NK: Tensor) -> Tensor:
        if self.is_normal:
            return self._along_x(W_NK, lambda panel: matmul.input_gradient(dO_MN, panel))
        return self._outer(dO_MN, W_NK, lambda left, panel: (left, panel))

    def weight_gradient(self, out: Tensor, dO_MN: Tensor, I_MK: Tensor, *, add: bool) -> None:
        """Write dW into out, or add it to what is there."""

        def product(panel: Tensor) -> Tensor:
            of, by = (dO_MN, panel) if self.is_normal else (panel, I_MK)
            made = torch.empty_like(out)
            matmul.weight_gradient(made, of, by, add=False)
            return made

        comm, overlaps = self.comm, self.schedule.overlap.oar
        moving = I_MK if self.is_normal else dO_MN
        partials = (product(panel) for panel in panels(comm, self.across, moving, ahead=overlaps))
        own = sum_onto(comm, self.down, partials, behind=overlaps)
        if add:
            out.add_(own)
        else:
            out.copy_(own)

    def _outer(self, left: Tensor, right: Tensor, lay: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> Tensor:
        total, comm, ahead = None, self.comm, self.schedule.overlap.oar
        both = zip(
            panels(comm, self.across, left, ahead=ahead), panels(comm, self.down, right, ahead=ahead), strict=True
        )
        for a, b in (lay(*pair) for pair in both):
            total = a @ b if total is None else total.addmm_(a, b)
        assert total is not None
        return total

    def _along_x(self, weight: Tensor, product: Callable[[Tensor], Tensor]) -> Tensor:
        overlaps = self.schedule.overlap.oar
        partials = (product(panel) for panel in panels(self.comm, self.down, weight, ahead=overlaps))
        return sum_onto(self.comm, self.across, partials, behind=overlaps)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inputs: Tensor, shard: Tensor, layer: SummaLinear) -> Tensor:
        I_MK = inputs.detach().flatten(0, -2).contiguous()
        W_NK = layer.schedule.gather(layer.sharded)
        ctx.save_for_backward(I_MK, W_NK if layer.schedule.keeps(layer.sharded) else None)
        ctx.layer, ctx.shape = layer, inputs.shape
        O_MN = layer.output(I_MK, W_NK)
        return O_MN.unsqueeze(0).detach()  # for autograd no view, so that what comes next may write into it

    @staticmethod
    def backward(ctx: Any, dO: Tensor) -> tuple[Tensor | None, None, None]:
        I_MK, W_NK = ctx.saved_tensors
        layer: SummaLinear = ctx.layer
        schedule, dI_MK = layer.schedule, None
        dO_MN = dO.detach().flatten(0, -2).contiguous()
        if ctx.needs_input_grad[0]:
            if W_NK is None:
                W_NK = schedule.gather(layer.sharded)
            dI_MK = layer.input_gradient(dO_MN, W_NK)

        def fill(out: Tensor, *, add: bool) -> None:
            layer.weight_gradient(out, dO_MN, I_MK, add=add)

        schedule.accumulate(layer.sharded, fill, layer.gradient_dtype)
        return None if dI_MK is None else dI_MK.view(ctx.shape), None, None


LAYERS: dict[type[nn.Module], Callable[[Any, Local], nn.Module]] = {
    nn.Linear: lambda _, local: SummaLinear(local),
    nn.Embedding: embedding,
    SerialCrossEntropy: cross_entropy,
    Redistribute: lambda serial, _: serial,  # both sides lie alike
    Enter: lambda _, local: SplitEnter(local.comm, local.mode),
    Leave: lambda _, local: SplitLeave(local.comm, local.mode),
}
"""Makers of the layers that differ from those of Algorithm 1."""
