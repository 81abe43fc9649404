"""Redistribution of features from x, where a projection ends, to y, where the residual stream has them."""

from typing import Any

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.grid import INNER, STREAM, Axis


class Redistribute(nn.Module):
    """Serial redistribution: none. dim: that of the features."""

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, features: Tensor) -> Tensor:
        return features


class _GatherAndCut(torch.autograd.Function):
    """F / Gx features to F / Gy. All of y hold the same input, and all of x the same gradient."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, comm: Comm, dim: int) -> Tensor:
        ctx.comm, ctx.dim = comm, dim
        return _redistributed(features, comm, INNER, STREAM, dim)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _redistributed(gradient, ctx.comm, STREAM, INNER, ctx.dim), None, None


def _redistributed(part: Tensor, comm: Comm, split: Axis, cut: Axis, dim: int) -> Tensor:
    """Gather parts of features along the axis that splits them, and keep this rank's part along the other."""
    whole = part
    if comm.grid[split] > 1:
        gathered = comm.run(Kind.ALL_GATHER, split, part.contiguous().view(-1))
        parts = gathered.view(comm.grid[split], *part.shape)
        place = dim % part.dim()
        whole = parts.movedim(0, place).flatten(place, place + 1)
    return whole.chunk(comm.grid[cut], dim=dim)[comm.coords[cut]].contiguous()


class RedistributeOverGrid(nn.Module):
    """Redistribution of F / Gx features to F / Gy; none where neither axis splits anything."""

    def __init__(self, comm: Comm, dim: int) -> None:
        super().__init__()
        self.comm, self.dim = comm, dim

    def forward(self, features: Tensor) -> Tensor:
        if self.comm.grid[INNER] == self.comm.grid[STREAM] == 1:
            return features
        return _GatherAndCut.apply(features, self.comm, self.dim)
