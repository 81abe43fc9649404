"""Parts of norms between their collectives: pure functions that are compiled for GPUs.

Norms over all features of a row are one function forward and one backward; over a part of them they are cut where ranks
communicate. Each can first add a second tensor of the same shape to its input, and to its result the gradient of the
sum. Without a second tensor no sum is returned: compiled code would write its input once more. M rows, H features of a
rank, R ranks.
"""

import torch
from torch import Tensor

from engine.layers.compiled import Compiled
from engine.precision import at_least_fp32


def _sum(x_MH: Tensor, added_MH: Tensor | None) -> Tensor:
    return x_MH if added_MH is None else x_MH + added_MH


def _rounded(sum_MH: Tensor, x_MH: Tensor, added_MH: Tensor | None) -> Tensor | None:
    return None if added_MH is None else sum_MH.to(x_MH.dtype)


def _moments(x_MH: Tensor, added_MH: Tensor | None = None) -> tuple[Tensor | None, Tensor]:
    """Compute the sum, and mean and mean square deviation of each of its rows, [2, M].

    There are two passes, for torch.var_mean takes processors 20 times as long.
    """
    wide_MH = _sum(at_least_fp32(x_MH), added_MH)
    mean_M1 = wide_MH.mean(1, keepdim=True)
    variance_M = (wide_MH - mean_M1).square_().mean(1)
    return _rounded(wide_MH, x_MH, added_MH), torch.stack([mean_M1.squeeze(1), variance_M])


def _moments_in_one_pass(x_MH: Tensor, added_MH: Tensor | None = None) -> tuple[Tensor | None, Tensor]:
    wide_MH = _sum(at_least_fp32(x_MH), added_MH)
    variance_M, mean_M = torch.var_mean(wide_MH, dim=1, correction=0)
    return _rounded(wide_MH, x_MH, added_MH), torch.stack([mean_M, variance_M])


def _combined(moments_R2M: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Combine the moments of ranks with as many features each: mean and 1 / std of each row, [M, 1]."""
    means_RM, variances_RM = moments_R2M.unbind(1)
    mean_M = means_RM.mean(0)
    variance_M = variances_RM.mean(0) + (means_RM - mean_M).square().mean(0)
    return mean_M.unsqueeze(1), (variance_M + eps).rsqrt().unsqueeze(1)


def _normalised(x_MH: Tensor, mean_M1: Tensor, rstd_M1: Tensor, weight_H: Tensor, bias_H: Tensor | None) -> Tensor:
    out_MH = (x_MH - mean_M1).mul_(rstd_M1).mul_(weight_H)
    return (out_MH if bias_H is None else out_MH.add_(bias_H)).to(x_MH.dtype)


def _layer_norm(
    x_MH: Tensor, added_MH: Tensor | None, weight_H: Tensor, bias_H: Tensor | None, eps: float
) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
    """Compute the sum, its norm, and mean and 1 / std of each row of the unrounded sum, [M, 1]."""
    wide_MH = _sum(at_least_fp32(x_MH), added_MH)
    variance_M1, mean_M1 = torch.var_mean(wide_MH, dim=1, correction=0, keepdim=True)
    rstd_M1 = (variance_M1 + eps).rsqrt()
    normal_MH = (wide_MH - mean_M1) * rstd_M1 * weight_H
    normal_MH = normal_MH if bias_H is None else normal_MH + bias_H
    return _rounded(wide_MH, x_MH, added_MH), normal_MH.to(x_MH.dtype), mean_M1, rstd_M1


def _norm_shares(
    g_MH: Tensor, x_MH: Tensor, mean_M1: Tensor, rstd_M1: Tensor, weight_H: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute what this rank's features add to the gradients of all, [2, M], and those of weight and bias."""
    wide_MH = at_least_fp32(g_MH)
    both_MH = (x_MH - mean_M1).mul_(rstd_M1).mul_(wide_MH)
    weight_H = weight_H.to(wide_MH.dtype)  # which may be stored in fewer digits
    return torch.stack([both_MH @ weight_H, wide_MH @ weight_H]), both_MH.sum(0), wide_MH.sum(0)


def _norm_gradient(
    g_MH: Tensor,
    x_MH: Tensor,
    mean_M1: Tensor,
    rstd_M1: Tensor,
    weight_H: Tensor,
    shares_2M: Tensor,
    features: int,
    dsum_MH: Tensor | None = None,
) -> Tensor:
    with_normal_M1, alone_M1 = (shares_2M / features).unsqueeze(2)
    normal_MH = (x_MH - mean_M1).mul_(rstd_M1)
    dx_MH = (g_MH * weight_H).addcmul_(normal_MH, with_normal_M1, value=-1).sub_(alone_M1).mul_(rstd_M1)
    return (dx_MH if dsum_MH is None else dx_MH.add_(dsum_MH)).to(x_MH.dtype)


def _layer_norm_gradients(
    g_MH: Tensor, x_MH: Tensor, mean_M1: Tensor, rstd_M1: Tensor, weight_H: Tensor, dsum_MH: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    wide_MH = at_least_fp32(g_MH)
    normal_MH, weighted_MH = (x_MH - mean_M1) * rstd_M1, wide_MH * weight_H
    with_normal_M1 = (weighted_MH * normal_MH).mean(1, keepdim=True)
    dx_MH = (weighted_MH - weighted_MH.mean(1, keepdim=True) - normal_MH * with_normal_M1) * rstd_M1
    return _sum(dx_MH, dsum_MH).to(x_MH.dtype), (wide_MH * normal_MH).sum(0), wide_MH.sum(0)


def _squares(x_MH: Tensor, added_MH: Tensor | None = None) -> tuple[Tensor | None, Tensor]:
    """Compute the sum, and the sum of squares of each of its rows, [M]."""
    sum_MH = _sum(x_MH, added_MH)
    return _rounded(sum_MH, x_MH, added_MH), torch.linalg.vector_norm(at_least_fp32(sum_MH), dim=1).square_()


def _scaled(x_MH: Tensor, rstd_M1: Tensor, weight_H: Tensor) -> Tensor:
    return (x_MH * rstd_M1).mul_(weight_H).to(x_MH.dtype)


def _rms_norm(
    x_MH: Tensor, added_MH: Tensor | None, weight_H: Tensor, eps: float
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Compute the sum, its norm, and 1 / rms of each row, [M, 1]."""
    sum_MH, squares_M = _squares(x_MH, added_MH)
    rstd_M1 = (squares_M / x_MH.shape[1] + eps).rsqrt_().unsqueeze(1)
    return sum_MH, _scaled(x_MH if sum_MH is None else sum_MH, rstd_M1, weight_H), rstd_M1


def _rms_norm_in_one_pass(
    x_MH: Tensor, added_MH: Tensor | None, weight_H: Tensor, eps: float
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Compute the same of the unrounded sum."""
    wide_MH = _sum(at_least_fp32(x_MH), added_MH)
    rstd_M1 = (wide_MH.square().mean(1, keepdim=True) + eps).rsqrt()
    return _rounded(wide_MH, x_MH, added_MH), (wide_MH * rstd_M1 * weight_H).to(x_MH.dtype), rstd_M1


def _head_norm(
    x_MH: Tensor, added_MH: Tensor | None, weight_H: Tensor, eps: float
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Compute _rms_norm of H features of a head: PyTorch compiles a function of one size for that, and of a second one
    for any, of which rows don't stay in registers. So each of the two has functions of its own.
    """
    return _rms_norm(x_MH, added_MH, weight_H, eps)


def _head_norm_in_one_pass(
    x_MH: Tensor, added_MH: Tensor | None, weight_H: Tensor, eps: float
) -> tuple[Tensor | None, Tensor, Tensor]:
    return _rms_norm_in_one_pass(x_MH, added_MH, weight_H, eps)


def _rms_shares(g_MH: Tensor, x_MH: Tensor, rstd_M1: Tensor, weight_H: Tensor) -> tuple[Tensor, Tensor]:
    """Compute what this rank's features add to the gradients of all, [M], and that of the weight."""
    both_MH = (x_MH * rstd_M1).mul_(g_MH)
    return both_MH @ weight_H.to(both_MH.dtype), both_MH.sum(0)


def _rms_gradient(
    g_MH: Tensor,
    x_MH: Tensor,
    rstd_M1: Tensor,
    weight_H: Tensor,
    shares_M: Tensor,
    features: int,
    dsum_MH: Tensor | None = None,
) -> Tensor:
    less_M1 = (shares_M / features).unsqueeze(1)
    dx_MH = (g_MH * weight_H).addcmul_(x_MH * rstd_M1, less_M1, value=-1).mul_(rstd_M1)
    return (dx_MH if dsum_MH is None else dx_MH.add_(dsum_MH)).to(x_MH.dtype)


def _rms_norm_gradients(
    g_MH: Tensor, x_MH: Tensor, rstd_M1: Tensor, weight_H: Tensor, dsum_MH: Tensor | None
) -> tuple[Tensor, Tensor]:
    shares_M, dweight_H = _rms_shares(g_MH, x_MH, rstd_M1, weight_H)
    return _rms_gradient(g_MH, x_MH, rstd_M1, weight_H, shares_M, x_MH.shape[1], dsum_MH), dweight_H


def _head_norm_gradients(
    g_MH: Tensor, x_MH: Tensor, rstd_M1: Tensor, weight_H: Tensor, dsum_MH: Tensor | None
) -> tuple[Tensor, Tensor]:
    return _rms_norm_gradients(g_MH, x_MH, rstd_M1, weight_H, dsum_MH)


moments = Compiled(_moments, _moments_in_one_pass)
combined, normalised = Compiled(_combined), Compiled(_normalised)
norm_shares, norm_gradient = Compiled(_norm_shares), Compiled(_norm_gradient)
squares, scaled = Compiled(_squares), Compiled(_scaled)
rms_shares, rms_gradient = Compiled(_rms_shares), Compiled(_rms_gradient)
layer_norm, layer_norm_gradients = Compiled(_layer_norm), Compiled(_layer_norm_gradients)
rms_norm = Compiled(_rms_norm, _rms_norm_in_one_pass)
rms_norm_gradients = Compiled(_rms_norm_gradients)
head_norm = Compiled(_head_norm, _head_norm_in_one_pass)
head_norm_gradients = Compiled(_head_norm_gradients)
