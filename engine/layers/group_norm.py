"""GroupNorm over channels that an axis splits, also scaled and shifted by image (AdaGN).

Where every group is wholly on one rank it is PyTorch's own kernel. Else the statistics of groups that straddle ranks
are shared, by one collective forward and one backward over the axis, as a split LayerNorm's are (norm.py): (mean,
variance), never below float32. Between the collectives run pure functions that are compiled for GPUs.

A channel of an image is a channel of one image of B C to PyTorch's BatchNorm: with given moments it scales and shifts
each, and adds up its gradient, in one pass. B images, C channels of a rank, M = B C, P pixels, G groups of all ranks,
S of them straddling ranks, R ranks of the axis, N the most channels that a rank has of one group.
"""

from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.errors import UsageError, listed_divisors
from engine.grid import Coords, Grid
from engine.layers import norm_parts
from engine.layers.compiled import Compiled
from engine.layers.norm import cast
from engine.overlap.schedule import WeightSchedule
from engine.placement import Placement
from engine.precision import at_least_fp32


def channel_counts(placement: Placement, grid: Grid, groups: int) -> list[Counter[int]]:
    """Count each group's channels on each rank of the axis that splits them. placement: of a norm's weight [C].

    A rank's groups come in the order in which it stores them, each in one piece: channels keep the serial order. Raises
    UsageError unless the groups divide the channels, and the axis every part of them.
    """
    (channels,), (axis,) = placement.shape, placement.split
    if groups < 1 or channels % groups:
        raise UsageError(
            f"{placement.name} has {channels} channels, which can't be {groups} groups of equal size: choose a number "
            f"of groups among {listed_divisors(channels)}."
        )
    ranks = grid[axis] if axis else 1
    if uneven := [part for part in placement.parts.get(0, (channels,)) if part % ranks]:
        raise UsageError(
            f"Grid {grid} splits the channels of {placement.name} over {axis}={ranks}, but {uneven[0]} is not a "
            f"multiple of {ranks}: {axis} may be one of {listed_divisors(uneven[0])}."
        )
    found: list[Counter[int]] = []
    for place in range(ranks):
        found.append(Counter())
        for rectangle in placement.rectangles(grid, Coords(**({axis.value: place} if axis else {}))):
            (first,), (count,) = rectangle.offsets, rectangle.sizes
            found[-1].update(channel * groups // channels for channel in range(first, first + count))
    return found


def find_straddling(placement: Placement, grid: Grid, groups: int) -> list[int]:
    """List the groups that no rank holds wholly, so that ranks have to share their statistics.

    >>> from engine.grid import Axis
    >>> from engine.placement import Constant
    >>> norm = Placement("norm1.weight", (96,), (Axis.Y,), False, Constant(1.0))
    >>> find_straddling(norm, Grid(y=2), 32), find_straddling(norm, Grid(y=3), 32)
    ([], [10, 21])
    """
    counts = channel_counts(placement, grid, groups)
    return [group for group in range(groups) if max(count[group] for count in counts) < placement.shape[0] // groups]


class Groups(NamedTuple):
    """Groups of all ranks, as a rank of the axis that splits the channels sees them."""

    of_C: Tensor
    """number of each of this rank's channels' group"""
    channels: Tensor
    """channels of each group, G x N in a row; where it has fewer, filled up"""
    counted_GN: Tensor
    """1 for a group's channels, 0 for what fills up"""
    means_GN: Tensor
    """the same, divided so that it adds up to 1 in each group"""
    shared_S: Tensor
    """numbers of the groups that straddle ranks"""
    shares_R1S: Tensor
    """part that each rank has of them"""

    @classmethod
    def for_rank(
        cls, placement: Placement, grid: Grid, place: int, number: int, device: torch.device, dtype: torch.dtype
    ) -> "Groups":
        """List the groups. placement: of a norm's weight; place: the rank's on the axis that splits it.

        Raises UsageError unless the groups divide the channels, and the axis every part of them.
        """
        counts, shared = channel_counts(placement, grid, number), find_straddling(placement, grid, number)
        of_C = list(counts[place].elements())
        taken_G = [[channel for channel, of in enumerate(of_C) if of == group] for group in range(number)]
        most = max(map(len, taken_G))
        channels = [channel for taken in taken_G for channel in taken + [0] * (most - len(taken))]
        wide = partial(torch.tensor, dtype=dtype, device=device)
        whole = partial(torch.tensor, dtype=torch.int64, device=device)
        counted_GN = wide([[1.0] * len(taken) + [0.0] * (most - len(taken)) for taken in taken_G])
        held_R1S = wide([[[count[group] for group in shared]] for count in counts])
        return cls(
            of_C=whole(of_C),
            channels=whole(channels),
            counted_GN=counted_GN,
            means_GN=counted_GN / counted_GN.sum(1, keepdim=True).clamp(min=1),
            shared_S=whole(shared),
            shares_R1S=held_R1S / (placement.shape[0] // number),
        )

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
    """Combine the moments of all ranks, and compute the norm by them; return them for each channel, too, [2, M]."""
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
    """Add up gradients of the output, times the norm and alone: over each channel, [2, B, C], over this rank's channels
    of each group, weighted, [2, B, G], and of those to be shared alone.
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
    """Return each of this rank's channels' values of its group, [2, M]."""
    return own_2BG.index_copy(2, groups.shared_S, shared_2BS).index_select(2, groups.of_C).flatten(1)


def _rows(x_BCHW: Tensor) -> Tensor:
    return x_BCHW.flatten(2).flatten(0, 1)


def _one_image(x_BCHW: Tensor) -> Tensor:
    return x_BCHW.flatten(0, 1).unsqueeze(0)


own_moments, group_norm = Compiled(_own_moments, _own_moments_in_one_pass), Compiled(_group_norm)
gradient_sums, group_norm_gradient = Compiled(_gradient_sums), Compiled(_group_norm_gradient)


class _Sharing:
    """Channels of this rank by group, and the exchange of statistics of groups that straddle ranks."""

    def __init__(self, comm: Comm, placement: Placement, groups: int, device: torch.device, dtype: torch.dtype) -> None:
        self.comm, self.axis = comm, placement.split[0]
        place = comm.coords[self.axis] if self.axis else 0
        self.needed = bool(find_straddling(placement, comm.grid, groups))
        if self.needed:
            self.groups = Groups.for_rank(placement, comm.grid, place, groups, device, dtype)
        self.channels = placement.shape[0] // groups
        """of a group"""
        self.own = len(channel_counts(placement, comm.grid, groups)[place])
        """number of groups of which this rank has channels"""

    def gather(self, sent_2BS: Tensor) -> Tensor:
        assert self.axis is not None
        return self.comm.run(Kind.ALL_GATHER, self.axis, sent_2BS).view(-1, *sent_2BS.shape)

    def sum(self, sent_2BS: Tensor) -> Tensor:
        assert self.axis is not None
        return self.comm.run(Kind.ALL_REDUCE, self.axis, sent_2BS)


class _SharedGroupNorm(torch.autograd.Function):
    """(x - mean) / std over each group * weight + bias, of x [B, C, H, W]; weight, bias: [B, C]."""

    @staticmethod
    def forward(ctx: Any, x_BCHW: Tensor, weight_BC: Tensor, bias_BC: Tensor, sharing: _Sharing, eps: float) -> Tensor:
        x_BCHW, groups = x_BCHW.contiguous(), sharing.groups
        own_2BG, sent_2BS = own_moments(x_BCHW, groups)
        found_R2BS = sharing.gather(sent_2BS)
        normal_BCHW, moments_2M = group_norm(x_BCHW, own_2BG, found_R2BS, groups, weight_BC, bias_BC, eps)
        ctx.save_for_backward(x_BCHW, moments_2M, weight_BC)
        ctx.sharing, ctx.eps = sharing, eps
        return normal_BCHW

    @staticmethod
    def backward(ctx: Any, g_BCHW: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x_BCHW, moments_2M, weight_BC = ctx.saved_tensors
        sharing, g_BCHW = ctx.sharing, g_BCHW.contiguous()
        groups, elements = sharing.groups, sharing.channels * x_BCHW.shape[2:].numel()
        sums_2BC, own_2BG, sent_2BS = gradient_sums(g_BCHW, x_BCHW, moments_2M, groups, weight_BC, ctx.eps)
        dx_BCHW = group_norm_gradient(
            g_BCHW, x_BCHW, moments_2M, own_2BG, sharing.sum(sent_2BS), groups, weight_BC, elements, ctx.eps
        )
        return dx_BCHW, *sums_2BC, None, None


class ScaledGroupNorm(nn.GroupNorm):
    """Serial GroupNorm, which each image scales and shifts by numbers [B, C] of its own."""

    def forward(self, x_BCHW: Tensor, scale_BC: Tensor, shift_BC: Tensor) -> Tensor:  # type: ignore[override]
        normal_BCHW: Tensor = super().forward(x_BCHW)
        return normal_BCHW * (1 + scale_BC[:, :, None, None]) + shift_BC[:, :, None, None]


class GroupNorm(nn.Module):
    """Norm of [B, C / G(axis), H, W] over each group of channels; shape and dtype stay.

    placement: of the weight, which says how channels are split.
    """

    def __init__(
        self,
        comm: Comm,
        schedule: WeightSchedule,
        placement: Placement,
        weight: nn.Parameter,
        bias: nn.Parameter,
        groups: int,
        eps: float,
    ) -> None:
        """Raise UsageError unless the groups divide the channels, and the axis every part of them."""
        super().__init__()
        self.schedule, self.weight, self.bias, self.eps = schedule, weight, bias, eps
        wide = torch.promote_types(schedule.compute_dtype, torch.float32)
        self.sharing = _Sharing(comm, placement, groups, weight.device, wide)

    def forward(self, x_BCHW: Tensor, scale_BC: Tensor | None = None, shift_BC: Tensor | None = None) -> Tensor:
        """Compute the norm, or norm * (1 + scale) + shift where both are given."""
        if self.sharing.needed:
            weight, bias = at_least_fp32(self.weight), at_least_fp32(self.bias)
        else:
            weight, bias = cast(self.weight, self.schedule), cast(self.bias, self.schedule)
        if scale_BC is not None and shift_BC is not None:
            weight, bias = weight + weight * scale_BC, bias + bias * scale_BC + shift_BC
        if self.sharing.needed:
            weight_BC, bias_BC = (one.expand(x_BCHW.shape[:2]) for one in (weight, bias))
            return _SharedGroupNorm.apply(x_BCHW, weight_BC, bias_BC, self.sharing, self.eps)
        if scale_BC is None:
            return torch.group_norm(x_BCHW, self.sharing.own, weight, bias, self.eps)
        # A group of an image is one of so many of a single image, whose channels have factors of their own each.
        images, channels, *side = x_BCHW.shape
        of_one = x_BCHW.reshape(1, images * channels, *side)
        normal = torch.group_norm(of_one, images * self.sharing.own, weight.view(-1), bias.view(-1), self.eps)
        return normal.view_as(x_BCHW)
