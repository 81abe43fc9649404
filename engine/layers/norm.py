"""LayerNorm and RMSNorm over a feature dim that an axis splits, also of a sum that they make first.

Where the axis has size 1 and nothing is compiled they are PyTorch's own kernels, if it has any; else one collective
forward and one backward over it. Statistics are never below float32, in which [sum, sum of squares] would lose digits:
ranks share (mean, M2) and combine them. M rows, H features of a rank, R ranks of the axis.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.grid import Axis
from engine.layers import norm_parts as parts
from engine.layers.compiled import fuses
from engine.overlap.schedule import WeightSchedule


def cast(parameter: nn.Parameter, schedule: WeightSchedule) -> Tensor:
    """Return the copy that the schedule makes once a step; its gradient is added to the parameter's."""
    if parameter.dtype == schedule.compute_dtype:
        return parameter
    return _Cast.apply(parameter, schedule)


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: nn.Parameter, schedule: WeightSchedule) -> Tensor:
        ctx.parameter = parameter
        return schedule.cast(parameter).detach()  # what is returned takes part in autograd, and the copy must not

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None]:
        ctx.parameter.grad.add_(gradient)  # of a narrower dtype, which autograd would cast first
        return None, None


Pair = tuple[Tensor, Tensor]


def _sum_of(x_MH: Tensor, added_up: Tensor | None) -> Tensor:
    return x_MH if added_up is None else added_up


class _AddLayerNorm(torch.autograd.Function):
    """x + added, and (that - mean) / std over all features * weight [H] + bias [H]. x, added: [M, H] or None.

    The sum's own gradient is added where the norm's is made.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_MH: Tensor,
        added_MH: Tensor | None,
        weight_H: Tensor,
        bias_H: Tensor | None,
        comm: Comm,
        axis: Axis,
        eps: float,
    ) -> Pair:
        if comm.grid[axis] == 1:
            added_up, normal_MH, mean_M1, rstd_M1 = parts.layer_norm(x_MH, added_MH, weight_H, bias_H, eps)
            sum_MH = _sum_of(x_MH, added_up)
        else:
            added_up, moments_2M = parts.moments(x_MH, added_MH)
            sum_MH = _sum_of(x_MH, added_up)
            moments_R2M = comm.run(Kind.ALL_GATHER, axis, moments_2M).view(comm.grid[axis], 2, -1)
            mean_M1, rstd_M1 = parts.combined(moments_R2M, eps)
            normal_MH = parts.normalised(sum_MH, mean_M1, rstd_M1, weight_H, bias_H)
        ctx.save_for_backward(sum_MH, mean_M1, rstd_M1, weight_H)
        ctx.comm, ctx.axis, ctx.shifts, ctx.adds = comm, axis, bias_H is not None, added_MH is not None
        ctx.set_materialize_grads(False)
        return sum_MH, normal_MH

    @staticmethod
    def backward(
        ctx: Any, dsum_MH: Tensor | None, g_MH: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None, None, None, None]:
        x_MH, mean_M1, rstd_M1, weight_H = ctx.saved_tensors
        comm: Comm = ctx.comm
        ranks = comm.grid[ctx.axis]
        if ranks == 1:
            dx_MH, dweight_H, dbias_H = parts.layer_norm_gradients(g_MH, x_MH, mean_M1, rstd_M1, weight_H, dsum_MH)
        else:
            shares_2M, dweight_H, dbias_H = parts.norm_shares(g_MH, x_MH, mean_M1, rstd_M1, weight_H)
            shares_2M = comm.run(Kind.ALL_REDUCE, ctx.axis, shares_2M)
            features = ranks * g_MH.shape[1]
            dx_MH = parts.norm_gradient(g_MH, x_MH, mean_M1, rstd_M1, weight_H, shares_2M, features, dsum_MH)
        return dx_MH, dx_MH if ctx.adds else None, dweight_H, dbias_H if ctx.shifts else None, None, None, None


class _AddRMSNorm(torch.autograd.Function):
    """x + added, and that / rms over all features * weight [H]. x: [M, H]; added: [M, H] or None.

    axis: splits the features; None where a row is a head, whose features are all on one rank.
    """

    @staticmethod
    def forward(
        ctx: Any, x_MH: Tensor, added_MH: Tensor | None, weight_H: Tensor, comm: Comm, axis: Axis | None, eps: float
    ) -> Pair:
        features = x_MH.shape[1] * (1 if axis is None else comm.grid[axis])
        if axis is None or features == x_MH.shape[1]:
            norm = parts.head_norm if axis is None else parts.rms_norm
            added_up, normal_MH, rstd_M1 = norm(x_MH, added_MH, weight_H, eps)
            sum_MH = _sum_of(x_MH, added_up)
        else:
            added_up, squares_M = parts.squares(x_MH, added_MH)
            sum_MH = _sum_of(x_MH, added_up)
            squares_M = comm.run(Kind.ALL_REDUCE, axis, squares_M)
            rstd_M1 = (squares_M / features + eps).rsqrt_().unsqueeze(1)
            normal_MH = parts.scaled(sum_MH, rstd_M1, weight_H)
        ctx.save_for_backward(sum_MH, rstd_M1, weight_H)
        ctx.comm, ctx.axis, ctx.features, ctx.adds = comm, axis, features, added_MH is not None
        ctx.set_materialize_grads(False)
        return sum_MH, normal_MH

    @staticmethod
    def backward(
        ctx: Any, dsum_MH: Tensor | None, g_MH: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor, None, None, None]:
        x_MH, rstd_M1, weight_H = ctx.saved_tensors
        comm: Comm = ctx.comm
        if ctx.features == g_MH.shape[1]:
            gradients = parts.head_norm_gradients if ctx.axis is None else parts.rms_norm_gradients
            dx_MH, dweight_H = gradients(g_MH, x_MH, rstd_M1, weight_H, dsum_MH)
        else:
            shares_M, dweight_H = parts.rms_shares(g_MH, x_MH, rstd_M1, weight_H)
            shares_M = comm.run(Kind.ALL_REDUCE, ctx.axis, shares_M)
            dx_MH = parts.rms_gradient(g_MH, x_MH, rstd_M1, weight_H, shares_M, ctx.features, dsum_MH)
        return dx_MH, dx_MH if ctx.adds else None, dweight_H, None, None, None


class _RMSNorm(torch.autograd.Function):
    """Norm of x alone: a second result would cost the host time."""

    @staticmethod
    def forward(ctx: Any, x_MH: Tensor, weight_H: Tensor, comm: Comm, axis: Axis | None, eps: float) -> Tensor:
        return _AddRMSNorm.forward(ctx, x_MH, None, weight_H, comm, axis, eps)[1]

    @staticmethod
    def backward(ctx: Any, g_MH: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        dx_MH, _, dweight_H, *_ = _AddRMSNorm.backward(ctx, None, g_MH)
        return dx_MH, dweight_H, None, None, None


class _Norm(nn.Module):
    """Base of both norms of a residual stream [..., h / G(axis)]."""

    def __init__(self, comm: Comm, axis: Axis, schedule: WeightSchedule, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.comm, self.axis, self.schedule, self.weight, self.eps = comm, axis, schedule, weight, eps
        self.ranks = comm.grid[axis]

    def after(self, x: Tensor, added: Tensor | None) -> Pair:
        """Compute x + added, and the norm of that."""
        if self.ranks == 1 and not fuses(x):
            x = x if added is None else x + added
            return x, self(x)
        sum_MH, normal_MH = self._of_rows(x.flatten(0, -2), None if added is None else added.flatten(0, -2))
        return sum_MH.view(x.shape), normal_MH.view(x.shape)

    def _of_rows(self, x_MH: Tensor, added_MH: Tensor | None) -> Pair:
        raise NotImplementedError


class LayerNorm(_Norm):
    """LayerNorm of [..., h / G(axis)] over all h features; shape and dtype stay."""

    def __init__(
        self,
        comm: Comm,
        axis: Axis,
        schedule: WeightSchedule,
        weight: nn.Parameter,
        bias: nn.Parameter | None,
        eps: float,
    ) -> None:
        super().__init__(comm, axis, schedule, weight, eps)
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        if self.ranks > 1:
            return self._of_rows(x.flatten(0, -2), None)[1].view(x.shape)
        weight = cast(self.weight, self.schedule)
        bias = None if self.bias is None else cast(self.bias, self.schedule)
        return F.layer_norm(x, weight.shape, weight, bias, self.eps)

    def _of_rows(self, x_MH: Tensor, added_MH: Tensor | None) -> Pair:
        return _AddLayerNorm.apply(x_MH, added_MH, self.weight, self.bias, self.comm, self.axis, self.eps)


class RMSNorm(_Norm):
    """Division of [..., h / G(axis)] by the root of the mean square of all h features; shape and dtype stay."""

    def forward(self, x: Tensor) -> Tensor:
        if self.ranks > 1 or not x.is_cuda:  # elsewhere PyTorch's own is no kernel but many
            return _RMSNorm.apply(x.flatten(0, -2), self.weight, self.comm, self.axis, self.eps).view(x.shape)
        weight = cast(self.weight, self.schedule)
        return F.rms_norm(x, weight.shape, weight, self.eps)

    def _of_rows(self, x_MH: Tensor, added_MH: Tensor | None) -> Pair:
        return _AddRMSNorm.apply(x_MH, added_MH, self.weight, self.comm, self.axis, self.eps)


class HeadNorm(nn.Module):
    """Division of each of some heads [..., heads, S, D] by the root of the mean square of its own features.

    weight [D] is that of all heads, also of other ranks, so that its gradient is partial.
    """

    def __init__(self, comm: Comm, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.comm, self.weight, self.eps = comm, weight, eps

    def forward(self, x: Tensor) -> Tensor:
        return _RMSNorm.apply(x.flatten(0, -2), self.weight, self.comm, None, self.eps).view(x.shape)
