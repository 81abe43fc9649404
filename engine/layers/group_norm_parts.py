"""A GroupNorm of which some groups straddle ranks computes this between its collectives, in pure functions that are
compiled for GPUs.

A channel of an image is what PyTorch calls a channel of one image of B C: its BatchNorm, with moments that are given,
scales and shifts each, and adds up its gradient, in one pass. B images, C channels of a rank, M = B C, P pixels, G
groups of all ranks, S those that straddle ranks, R ranks of the axis, N channels that a rank has at most of one group.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.grid import Grid
from engine.layers import norm_parts
from engine.layers.channel_groups import channel_counts, straddling
from engine.layers.compiled import Compiled
from engine.placement import Placement


class Groups(NamedTuple):
    """They are the groups of all ranks, as a rank of the axis that splits the channels sees them.

    of_C: the number of each of its channels' group. channels: those of each group, G x N in a row, where it has fewer
    filled up; counted_GN: 1 for those that are its, else 0; means_GN: so divided that they add up to 1 in each group.
    shared_S: the numbers of those that straddle ranks. shares_R1S: the part that each rank has of them.
    """

    of_C: Tensor
    channels: Tensor
    counted_GN: Tensor
    means_GN: Tensor
    shared_S: Tensor
    shares_R1S: Tensor

    @classmethod
    def of_rank(
        cls, placement: Placement, grid: Grid, place: int, number: int, device: torch.device, dtype: torch.dtype
    ) -> "Groups":
        """List so many groups. placement: of a norm's weight; place: the rank's on the axis that splits it.

        Raises UsageError unless the groups divide the channels, and the axis every part of them.
        """
        counts, shared = channel_counts(placement, grid, number), straddling(placement, grid, number)
        of_C = list(counts[place].elements())
        taken_G = [[channel for channel, of in enumerate(of_C) if of == group] for group in range(number)]
        most = max(map(len, taken_G))
        channels = [channel for taken in taken_G for channel in taken + [0] * (most - len(taken))]
        counted_GN, held_R1S = (
            torch.tensor(numbers, dtype=dtype, device=device)
            for numbers in (
                [[1.0] * len(taken) + [0.0] * (most - len(taken)) for taken in taken_G],
                [[[count[group] for group in shared]] for count in counts],
            )
        )
        own, theirs, shared_S = (
            torch.tensor(numbers, dtype=torch.int64, device=device) for numbers in (of_C, channels, shared)
        )
        means_GN = counted_GN / counted_GN.sum(1, keepdim=True).clamp(min=1)
        return cls(own, theirs, counted_GN, means_GN, shared_S, held_R1S / (placement.shape[0] // number))

    def sum(self, of_BC: Tensor, weights_GN: Tensor) -> Tensor:
        """Add up over this rank's channels of each group, so weighted, [B, G]. As a product it would count flops."""
        return (of_BC.index_select(-1, self.channels).unflatten(-1, weights_GN.shape) * weights_GN).sum(-1)


def _own_moments(x_BCHW: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    """Compute mean and variance of what this rank has of each group, [2, B, G], and of those to be shared alone."""
    return _of_groups(norm_parts.moments.plain(_rows(x_BCHW))[1].view(2, *x_BCHW.shape[:2]), groups)


def _own_moments_in_one_pass(x_BCHW: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    return _of_groups(norm_parts.moments.source(_rows(x_BCHW))[1].view(2, *x_BCHW.shape[:2]), groups)


def _of_groups(moments_2BC: Tensor, groups: Groups) -> tuple[Tensor, Tensor]:
    mean_BC, variance_BC = moments_2BC
    mean_BG = groups.sum(mean_BC, groups.means_GN)
    apart_BC = mean_BC - mean_BG.index_select(1, groups.of_C)
    variance_BG = groups.sum(torch.addcmul(variance_BC, apart_BC, apart_BC), groups.means_GN)
    own_2BG = torch.stack([mean_BG, variance_BG])
    return own_2BG, own_2BG.index_select(2, groups.shared_S)


def _group_norm(
    x_BCHW: Tensor, own_2BG: Tensor, found_R2BS: Tensor, groups: Groups, weight_BC: Tensor, bias_BC: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Combine the moments that ranks found, and compute the norm by them; give them for each channel, too, [2, M]."""
    means_RBS, variances_RBS = found_R2BS.unbind(1)
    mean_BS = (means_RBS * groups.shares_R1S).sum(0)
    apart_RBS = means_RBS - mean_BS
    variance_BS = (torch.addcmul(variances_RBS, apart_RBS, apart_RBS) * groups.shares_R1S).sum(0)
    moments_2M = _of_channels(own_2BG, torch.stack([mean_BS, variance_BS]), groups)
    mean_M, variance_M = moments_2M
    normal_1MHW = F.batch_norm(
        _one_image(x_BCHW), mean_M, variance_M, weight_BC.flatten(), bias_BC.flatten(), False, 0.0, eps
    )
    return normal_1MHW.view(x_BCHW.shape), moments_2M


def _gradient_sums(
    g_BCHW: Tensor, x_BCHW: Tensor, moments_2M: Tensor, groups: Groups, weight_BC: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Add up what comes to the norm's output, by the norm and alone: over each channel, [2, B, C], over what this rank
    has of each group, weighted, [2, B, G], and of those to be shared alone.
    """
    mean_M, variance_M = moments_2M
    _, with_normal_M, alone_M = torch.ops.aten.native_batch_norm_backward(
        _one_image(g_BCHW), _one_image(x_BCHW), mean_M, mean_M, variance_M, None, None, False, eps, (False, True, True)
    )
    sums_2BC = torch.stack([with_normal_M, alone_M]).view(2, *weight_BC.shape)
    own_2BG = groups.sum(sums_2BC * weight_BC, groups.counted_GN)
    return sums_2BC, own_2BG, own_2BG.index_select(2, groups.shared_S)


def _group_norm_gradient(
    g_BCHW: Tensor,
    x_BCHW: Tensor,
    moments_2M: Tensor,
    own_2BG: Tensor,
    shared_2BS: Tensor,
    groups: Groups,
    weight_BC: Tensor,
    elements: int,
    eps: float,
) -> Tensor:
    """Compute the gradient of the norm's input. elements: of a group in an image."""
    mean_M, variance_M = moments_2M
    rstd_M = (variance_M + eps).rsqrt()
    with_normal_M, alone_M = _of_channels(own_2BG, shared_2BS, groups) / elements * rstd_M
    by_x_M = -with_normal_M * rstd_M
    constant_M = torch.addcmul(alone_M, by_x_M, mean_M).neg()
    dx_MP = _rows(g_BCHW) * (weight_BC.flatten() * rstd_M).unsqueeze(1)
    dx_MP = dx_MP.addcmul_(_rows(x_BCHW), by_x_M.unsqueeze(1)).add_(constant_M.unsqueeze(1))
    return dx_MP.to(x_BCHW.dtype).view(x_BCHW.shape)


def _of_channels(own_2BG: Tensor, shared_2BS: Tensor, groups: Groups) -> Tensor:
    """Give each of this rank's channels what its group has, [2, M]."""
    return own_2BG.index_copy(2, groups.shared_S, shared_2BS).index_select(2, groups.of_C).flatten(1)


def _rows(x_BCHW: Tensor) -> Tensor:
    return x_BCHW.flatten(2).flatten(0, 1)


def _one_image(x_BCHW: Tensor) -> Tensor:
    return x_BCHW.flatten(0, 1).unsqueeze(0)


own_moments, group_norm = Compiled(_own_moments, _own_moments_in_one_pass), Compiled(_group_norm)
gradient_sums, group_norm_gradient = Compiled(_gradient_sums), Compiled(_group_norm_gradient)
