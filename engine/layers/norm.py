"""LayerNorm and RMSNorm on a feature dim that the axis y splits.

Where y has size 1 they are PyTorch's own kernels, if it has any; else one collective forward and one backward over y.
Statistics are never below float32, in which [sum, sum of squares] would lose digits: ranks share (mean, M2) and combine
them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.grid import Axis
from engine.precision import at_least_fp32


class _Normalise(torch.autograd.Function):
    """x [M, H] -> (x - mean) / std over all features of y's ranks."""

    @staticmethod
    def forward(ctx, x_MH: Tensor, comm: Comm, eps: float) -> Tensor:  # type: ignore[no-untyped-def]
        wide, ranks = at_least_fp32(x_MH), comm.grid.y
        m2, mean = torch.var_mean(wide, dim=1, correction=0)
        means, variances = comm.run(Kind.ALL_GATHER, Axis.Y, torch.stack([mean, m2])).view(ranks, 2, -1).unbind(1)
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square().mean(0)
        rstd_M1 = (variance + eps).rsqrt().unsqueeze(1)
        normal_MH = (wide - mean.unsqueeze(1)).mul_(rstd_M1)
        ctx.save_for_backward(normal_MH, rstd_M1)
        ctx.comm = comm
        return normal_MH

    @staticmethod
    def backward(ctx, g_MH: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def]
        normal_MH, rstd_M1 = ctx.saved_tensors
        comm: Comm = ctx.comm
        sums = torch.stack([(g_MH * normal_MH).sum(1), g_MH.sum(1)])
        total = comm.run(Kind.ALL_REDUCE, Axis.Y, sums) / (comm.grid.y * g_MH.shape[1])
        dx_MH = torch.addcmul(g_MH, normal_MH, total[0].unsqueeze(1), value=-1).sub_(total[1].unsqueeze(1))
        return dx_MH.mul_(rstd_M1), None, None


class _RMSNorm(torch.autograd.Function):
    """x [M, H] / rms over all features * weight [H], in fewer passes than autograd's own.

    axis: y where it splits the features; x where it splits rows, each rank having all features of its own heads.
    """

    @staticmethod
    def forward(ctx, x_MH: Tensor, weight_H: Tensor, comm: Comm, axis: Axis, eps: float) -> Tensor:  # type: ignore[no-untyped-def]
        wide, features = at_least_fp32(x_MH), x_MH.shape[1]
        squares = torch.linalg.vector_norm(wide, dim=1).square_()
        if axis is Axis.Y:
            squares, features = comm.run(Kind.ALL_REDUCE, Axis.Y, squares), comm.grid.y * features
        rstd_M1 = (squares / features + eps).rsqrt_().unsqueeze(1)
        ctx.save_for_backward(x_MH, weight_H, rstd_M1)
        ctx.comm, ctx.axis, ctx.features = comm, axis, features
        return (wide * rstd_M1).mul_(weight_H).to(x_MH.dtype)

    @staticmethod
    def backward(ctx, g_MH: Tensor) -> tuple[Tensor, Tensor, None, None, None]:  # type: ignore[no-untyped-def]
        x_MH, weight_H, rstd_M1 = ctx.saved_tensors
        comm: Comm = ctx.comm
        wide = at_least_fp32(g_MH)
        normal_MH = x_MH * rstd_M1
        both_MH = wide * normal_MH
        shares, dweight_H = torch.mv(both_MH, weight_H), both_MH.sum(0)
        if ctx.axis is Axis.Y:
            shares = comm.run(Kind.ALL_REDUCE, Axis.Y, shares)
        else:
            dweight_H = comm.run(Kind.ALL_REDUCE, Axis.X, dweight_H)
        shares /= ctx.features
        dx_MH = (wide * weight_H).addcmul_(normal_MH, shares.unsqueeze(1), value=-1).mul_(rstd_M1)
        return dx_MH.to(x_MH.dtype), dweight_H, None, None, None


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
        normal = _Normalise.apply(x.flatten(0, -2), self.comm, self.eps).unflatten(0, x.shape[:-1]) * self.weight
        return (normal if self.bias is None else normal + self.bias).to(x.dtype)


class RMSNorm(nn.Module):
    """[..., h / Gy] -> the same shape and dtype, divided by the root of the mean square of all h features."""

    def __init__(self, comm: Comm, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.comm, self.weight, self.eps = comm, weight, eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise and scale."""
        if self.comm.grid.y == 1 and x.is_cuda:  # elsewhere PyTorch's own is no kernel but many
            return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
        return _rms_norm(x, self.weight, self.comm, Axis.Y, self.eps)


class HeadNorm(nn.Module):
    """Heads [..., heads / Gx, S, D] -> the same, each divided by the root of the mean square of its own features.

    weight [D] is that of all heads, so its gradient is summed over x.
    """

    def __init__(self, comm: Comm, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.comm, self.weight, self.eps = comm, weight, eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise and scale."""
        return _rms_norm(x, self.weight, self.comm, Axis.X, self.eps)


def _rms_norm(x: Tensor, weight: Tensor, comm: Comm, axis: Axis, eps: float) -> Tensor:
    return _RMSNorm.apply(x.flatten(0, -2), weight, comm, axis, eps).unflatten(0, x.shape[:-1])
