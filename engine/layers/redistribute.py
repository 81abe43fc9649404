"""Redistribute makes features that x splits features that y splits, as the residual stream has them.

A projection ends split over x, and the next norm or projection asks for y: ranks gather over x and keep y's part.
"""

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.grid import INNER, STREAM, Axis


class Redistribute(nn.Module):
    """It leaves serial features [..., F] as they are."""

    def forward(self, features: Tensor) -> Tensor:
        return features


class _GatherAndCut(torch.autograd.Function):
    """It maps [..., F / Gx] to [..., F / Gy]. All of y hold the same input, and all of x the same gradient."""

    @staticmethod
    def forward(ctx, features: Tensor, comm: Comm) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.comm = comm
        return _redistributed(features, comm, INNER, STREAM)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return _redistributed(gradient, ctx.comm, STREAM, INNER), None


def _redistributed(part: Tensor, comm: Comm, split: Axis, cut: Axis) -> Tensor:
    """Gather parts of features along the axis that splits them, and keep this rank's part along the other."""
    whole = part
    if comm.grid[split] > 1:
        gathered = comm.run(Kind.ALL_GATHER, split, part.contiguous().view(-1))
        parts = gathered.view(comm.grid[split], *part.shape)
        whole = parts.movedim(0, -2).flatten(-2)
    return whole.chunk(comm.grid[cut], dim=-1)[comm.coords[cut]].contiguous()


class RedistributeOverGrid(nn.Module):
    """It redistributes over the grid. Where neither axis splits anything it does nothing."""

    def __init__(self, comm: Comm) -> None:
        super().__init__()
        self.comm = comm

    def forward(self, features: Tensor) -> Tensor:
        """Map [..., F / Gx] to [..., F / Gy]."""
        if self.comm.grid[INNER] == self.comm.grid[STREAM] == 1:
            return features
        return _GatherAndCut.apply(features, self.comm)
