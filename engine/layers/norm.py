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
from engine.layers.cast import cast
from engine.layers.compiled import Compiled
from engine.overlap.schedule import WeightSchedule
from engine.precision import at_least_fp32


class _LayerNorm(torch.autograd.Function):
    """x [M, H] -> (x - mean) / std over all features of y's ranks * weight [H] + bias [H]."""

    @staticmethod
    def forward(ctx, x_MH: Tensor, weight_H: Tensor, bias_H: Tensor | None, comm: Comm, eps: float) -> Tensor:  # type: ignore[no-untyped-def]
        parts_2M = comm.run(Kind.ALL_GATHER, Axis.Y, moments(x_MH)).view(comm.grid.y, 2, -1)
        mean_M1, rstd_M1 = combined(parts_2M, eps)
        ctx.save_for_backward(x_MH, mean_M1, rstd_M1, weight_H)
        ctx.comm, ctx.shifts = comm, bias_H is not None
        return normalised(x_MH, mean_M1, rstd_M1, weight_H, bias_H)

    @staticmethod
    def backward(ctx, g_MH: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None, None]:  # type: ignore[no-untyped-def]
        x_MH, mean_M1, rstd_M1, weight_H = ctx.saved_tensors
        comm: Comm = ctx.comm
        shares_2M, dweight_H, dbias_H = norm_shares(g_MH, x_MH, mean_M1, rstd_M1, weight_H)
        shares_2M = comm.run(Kind.ALL_REDUCE, Axis.Y, shares_2M)
        features = comm.grid.y * g_MH.shape[1]
        dx_MH = norm_gradient(g_MH, x_MH, mean_M1, rstd_M1, weight_H, shares_2M, features)
        return dx_MH, dweight_H, dbias_H if ctx.shifts else None, None, None


def _moments(x_MH: Tensor) -> Tensor:
    """Mean and mean square deviation of each row, [2, M]."""
    variance_M, mean_M = torch.var_mean(at_least_fp32(x_MH), dim=1, correction=0)
    return torch.stack([mean_M, variance_M])


def _combined(parts_R2M: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1 / std of each row, [M, 1], of what ranks found of as many features each."""
    means_RM, variances_RM = parts_R2M.unbind(1)
    mean_M = means_RM.mean(0)
    variance_M = variances_RM.mean(0) + (means_RM - mean_M).square().mean(0)
    return mean_M.unsqueeze(1), (variance_M + eps).rsqrt().unsqueeze(1)


def _normalised(x_MH: Tensor, mean_M1: Tensor, rstd_M1: Tensor, weight_H: Tensor, bias_H: Tensor | None) -> Tensor:
    out_MH = (x_MH - mean_M1).mul_(rstd_M1).mul_(weight_H)
    return (out_MH if bias_H is None else out_MH.add_(bias_H)).to(x_MH.dtype)


def _norm_shares(
    g_MH: Tensor, x_MH: Tensor, mean_M1: Tensor, rstd_M1: Tensor, weight_H: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What this rank's features add to the gradients of all: [2, M]; and those of weight and bias."""
    wide_MH = at_least_fp32(g_MH)
    both_MH = (x_MH - mean_M1).mul_(rstd_M1).mul_(wide_MH)
    return torch.stack([both_MH @ weight_H, wide_MH @ weight_H]), both_MH.sum(0), wide_MH.sum(0)


def _norm_gradient(
    g_MH: Tensor,
    x_MH: Tensor,
    mean_M1: Tensor,
    rstd_M1: Tensor,
    weight_H: Tensor,
    shares_2M: Tensor,
    features: int,
) -> Tensor:
    with_normal_M1, alone_M1 = (shares_2M / features).unsqueeze(2)
    normal_MH = (x_MH - mean_M1).mul_(rstd_M1)
    dx_MH = (g_MH * weight_H).addcmul_(normal_MH, with_normal_M1, value=-1).sub_(alone_M1).mul_(rstd_M1)
    return dx_MH.to(x_MH.dtype)


moments, combined, normalised = Compiled(_moments), Compiled(_combined), Compiled(_normalised)
norm_shares, norm_gradient = Compiled(_norm_shares), Compiled(_norm_gradient)


class _RMSNorm(torch.autograd.Function):
    """x [M, H] / rms over all features * weight [H], in fewer passes than autograd's own.

    axis: y where it splits the features; x where it splits rows, each rank having all features of its own heads.
    """

    @staticmethod
    def forward(ctx, x_MH: Tensor, weight_H: Tensor, comm: Comm, axis: Axis, eps: float) -> Tensor:  # type: ignore[no-untyped-def]
        squares_M, features = squares(x_MH), x_MH.shape[1]
        if axis is Axis.Y:
            squares_M, features = comm.run(Kind.ALL_REDUCE, Axis.Y, squares_M), comm.grid.y * features
        rstd_M1 = (squares_M / features + eps).rsqrt_().unsqueeze(1)
        ctx.save_for_backward(x_MH, rstd_M1, weight_H)
        ctx.comm, ctx.axis, ctx.features = comm, axis, features
        return scaled(x_MH, rstd_M1, weight_H)

    @staticmethod
    def backward(ctx, g_MH: Tensor) -> tuple[Tensor, Tensor, None, None, None]:  # type: ignore[no-untyped-def]
        x_MH, rstd_M1, weight_H = ctx.saved_tensors
        comm: Comm = ctx.comm
        shares_M, dweight_H = rms_shares(g_MH, x_MH, rstd_M1, weight_H)
        if ctx.axis is Axis.Y:
            shares_M = comm.run(Kind.ALL_REDUCE, Axis.Y, shares_M)
        else:
            dweight_H = comm.run(Kind.ALL_REDUCE, Axis.X, dweight_H)
        dx_MH = rms_gradient(g_MH, x_MH, rstd_M1, weight_H, shares_M, ctx.features)
        return dx_MH, dweight_H, None, None, None


def _squares(x_MH: Tensor) -> Tensor:
    return torch.linalg.vector_norm(at_least_fp32(x_MH), dim=1).square_()


def _scaled(x_MH: Tensor, rstd_M1: Tensor, weight_H: Tensor) -> Tensor:
    return (x_MH * rstd_M1).mul_(weight_H).to(x_MH.dtype)


def _rms_shares(g_MH: Tensor, x_MH: Tensor, rstd_M1: Tensor, weight_H: Tensor) -> tuple[Tensor, Tensor]:
    """What this rank's features add to the gradients of all: [M]; and that of the weight."""
    both_MH = (x_MH * rstd_M1).mul_(g_MH)
    return both_MH @ weight_H, both_MH.sum(0)


def _rms_gradient(
    g_MH: Tensor, x_MH: Tensor, rstd_M1: Tensor, weight_H: Tensor, shares_M: Tensor, features: int
) -> Tensor:
    less_M1 = (shares_M / features).unsqueeze(1)
    dx_MH = (g_MH * weight_H).addcmul_(x_MH * rstd_M1, less_M1, value=-1).mul_(rstd_M1)
    return dx_MH.to(x_MH.dtype)


squares, scaled = Compiled(_squares), Compiled(_scaled)
rms_shares, rms_gradient = Compiled(_rms_shares), Compiled(_rms_gradient)


class LayerNorm(nn.Module):
    """[..., h / Gy] -> the same shape and dtype, normalised over all h features."""

    def __init__(
        self, comm: Comm, schedule: WeightSchedule, weight: nn.Parameter, bias: nn.Parameter | None, eps: float
    ) -> None:
        super().__init__()
        self.comm, self.schedule, self.weight, self.bias, self.eps = comm, schedule, weight, bias, eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, scale and shift."""
        if self.comm.grid.y == 1:
            weight = cast(self.weight, self.schedule)
            bias = None if self.bias is None else cast(self.bias, self.schedule)
            return F.layer_norm(x, weight.shape, weight, bias, self.eps)
        normal = _LayerNorm.apply(x.flatten(0, -2), self.weight, self.bias, self.comm, self.eps)
        return normal.unflatten(0, x.shape[:-1])


class RMSNorm(nn.Module):
    """[..., h / Gy] -> the same shape and dtype, divided by the root of the mean square of all h features."""

    def __init__(self, comm: Comm, schedule: WeightSchedule, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.comm, self.schedule, self.weight, self.eps = comm, schedule, weight, eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise and scale."""
        if self.comm.grid.y == 1 and x.is_cuda:  # elsewhere PyTorch's own is no kernel but many
            weight = cast(self.weight, self.schedule)
            return F.rms_norm(x, weight.shape, weight, self.eps)
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
