"""LayerNorm and RMSNorm on a feature dim that the axis y splits.

Where y has size 1 they are PyTorch's own kernels; else one collective forward and one backward over y. Statistics
are never below float32, in which [sum, sum of squares] would lose digits: ranks share (mean, M2) and combine them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.grid import Axis
from engine.precision import at_least_fp32


class _Normalise(torch.autograd.Function):
    """x [M, H] -> (x - mean) / std over all features of y's ranks; centred=False leaves the mean alone (RMSNorm)."""

    @staticmethod
    def forward(ctx, x_MH: Tensor, comm: Comm, eps: float, centred: bool) -> Tensor:  # type: ignore[no-untyped-def]
        wide, ranks, width = at_least_fp32(x_MH), comm.grid.y, x_MH.shape[1]
        if centred:
            m2, mean = torch.var_mean(wide, dim=1, correction=0)
            own = torch.stack([mean, m2])
            means, variances = comm.run(Kind.ALL_GATHER, Axis.Y, own).view(ranks, 2, -1).unbind(1)
            mean = means.mean(0)
            variance = variances.mean(0) + (means - mean).square().mean(0)
            wide = wide - mean.unsqueeze(1)
        else:
            variance = comm.run(Kind.ALL_REDUCE, Axis.Y, wide.square().sum(1)) / (ranks * width)
        rstd_M1 = (variance + eps).rsqrt().unsqueeze(1)
        normal_MH = wide * rstd_M1
        ctx.save_for_backward(normal_MH, rstd_M1)
        ctx.comm, ctx.centred = comm, centred
        return normal_MH

    @staticmethod
    def backward(ctx, g_MH: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[no-untyped-def]
        normal_MH, rstd_M1 = ctx.saved_tensors
        comm: Comm = ctx.comm
        sums = [(g_MH * normal_MH).sum(1)] + ([g_MH.sum(1)] if ctx.centred else [])
        total = comm.run(Kind.ALL_REDUCE, Axis.Y, torch.stack(sums)) / (comm.grid.y * g_MH.shape[1])
        dx_MH = g_MH - normal_MH * total[0].unsqueeze(1)
        if ctx.centred:
            dx_MH -= total[1].unsqueeze(1)
        return dx_MH.mul_(rstd_M1), None, None, None


def _normalise(x: Tensor, comm: Comm, eps: float, *, centred: bool) -> Tensor:
    return _Normalise.apply(x.flatten(0, -2), comm, eps, centred).unflatten(0, x.shape[:-1])


class LayerNorm(nn.Module):
    """[..., h / Gy] -> the same shape and dtype, normalised over all h features."""

    def __init__(self, comm: Comm, weight: nn.Parameter, bias: nn.Parameter | None, eps: float) -> None:
        super().__init__()
        self.comm, self.weight, self.bias, self.eps = comm, weight, bias, eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, scale and shift."""
        if self.comm.grid.y == 1:
            bias = None if self.bias is None else self.bias.to(x.dtype)
            return F.layer_norm(x, self.weight.shape, self.weight.to(x.dtype), bias, self.eps)
        normal = _normalise(x, self.comm, self.eps, centred=True) * self.weight
        return (normal if self.bias is None else normal + self.bias).to(x.dtype)


class RMSNorm(nn.Module):
    """[..., h / Gy] -> the same shape and dtype, divided by the root of the mean square of all h features."""

    def __init__(self, comm: Comm, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.comm, self.weight, self.eps = comm, weight, eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise and scale."""
        if self.comm.grid.y == 1:
            return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
        return (_normalise(x, self.comm, self.eps, centred=False) * self.weight).to(x.dtype)
