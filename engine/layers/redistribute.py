"""Redistribution of features from where a projection from the stream ends to where the residual stream has them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.grid import Axis
from engine.layers.passes import Pass
from engine.tensor_mode import TensorMode


class Redistribute(nn.Module):
    """Serial redistribution: none. dim: that of the features."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, features: Tensor) -> Tensor:
        return features


class Enter(nn.Module):
    """Beginning of the stream: serially, nothing. Where ranks have rows of their own, these of [B, S, h]."""

    def forward(self, x_BSH: Tensor, at: Pass) -> Tensor:
        return x_BSH


class Leave(nn.Module):
    """End of the stream: serially, nothing. Where ranks have rows of their own, those of all of them, [B, S, h]."""

    def forward(self, x: Tensor, at: Pass) -> Tensor:
        return x


class AllRows(torch.autograd.Function):
    """Rows of all ranks of an axis, each of which computes the same with them: [1, M / G, n] to [1, M, n]."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, comm: Comm, axis: Axis) -> Tensor:
        ctx.comm, ctx.axis = comm, axis
        return comm.run(Kind.ALL_GATHER, axis, part.contiguous().view(-1)).view(1, -1, part.shape[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        comm, axis = ctx.comm, ctx.axis
        return gradient.chunk(comm.grid[axis], dim=1)[comm.coords[axis]].contiguous(), None, None


def all_rows(part: Tensor, comm: Comm, axes: Iterable[Axis]) -> Tensor:
    """Gather the rows of all ranks of these axes, the first of which counts fastest; differentiable."""
    for axis in axes:
        part = AllRows.apply(part, comm, axis) if comm.grid[axis] > 1 else part
    return part


class _GatherAndCut(torch.autograd.Function):
    """F / G(split) features to F / G(cut). All along cut hold the same input, and all along split the same gradient."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, comm: Comm, split: Axis, cut: Axis, dim: int) -> Tensor:
        ctx.comm, ctx.axes, ctx.dim = comm, (cut, split), dim
        return redistributed(features, comm, split, cut, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        cut, split = ctx.axes
        return redistributed(gradient, ctx.comm, cut, split, ctx.dim), None, None, None, None


def redistributed(part: Tensor, comm: Comm, split: Axis, cut: Axis, dim: int) -> Tensor:
    """Gather parts of features along the axis that splits them, and keep this rank's part along the other."""
    whole = part
    if comm.grid[split] > 1:
        gathered = comm.run(Kind.ALL_GATHER, split, part.contiguous().view(-1))
        parts = gathered.view(comm.grid[split], *part.shape)
        place = dim % part.dim()
        whole = parts.movedim(0, place).flatten(place, place + 1)
    return whole.chunk(comm.grid[cut], dim=dim)[comm.coords[cut]].contiguous()


class RedistributeOverGrid(nn.Module):
    """Redistribution of features over the axis of inner ones to the stream's; none where neither splits anything."""

    def __init__(self, comm: Comm, mode: TensorMode, dim: int) -> None:
        super().__init__()
        self.comm, self.dim = comm, dim
        self.axes = mode.inner.features, mode.stream.features
        self.moves = any(comm.grid[axis] > 1 for axis in self.axes)

    def forward(self, features: Tensor) -> Tensor:
        return _GatherAndCut.apply(features, self.comm, *self.axes, self.dim) if self.moves else features
