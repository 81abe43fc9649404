"""GroupNorm works on channels that an axis splits; it may scale and shift what comes out by image (AdaGN).

Where every group is wholly on one rank it is PyTorch's own kernel. Else the statistics of groups that straddle ranks
are shared, by one collective forward and one backward over the axis, as those of a split LayerNorm are (norm.py):
(mean, variance), never below float32 (group_norm_parts.py, whose letters shapes have).
"""

import torch
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.layers import group_norm_parts as parts
from engine.layers.cast import cast
from engine.layers.channel_groups import channel_counts, straddling
from engine.overlap.schedule import WeightSchedule
from engine.placement import Placement


class _Sharing:
    """It knows which channels of this rank make up which groups, and shares what is found of those that straddle
    ranks.
    """

    def __init__(self, comm: Comm, placement: Placement, groups: int, device: torch.device, dtype: torch.dtype) -> None:
        self.comm, self.axis = comm, placement.split[0]
        place = comm.coords[self.axis] if self.axis else 0
        self.needed = bool(straddling(placement, comm.grid, groups))
        if self.needed:
            self.groups = parts.Groups.of_rank(placement, comm.grid, place, groups, device, dtype)
        self.channels = placement.shape[0] // groups
        """So many channels has a group."""
        self.own = len(channel_counts(placement, comm.grid, groups)[place])
        """Of so many groups has this rank channels."""

    def gather(self, sent_2BS: Tensor) -> Tensor:
        """Give what all ranks have found, [R, 2, B, S]."""
        assert self.axis is not None
        return self.comm.run(Kind.ALL_GATHER, self.axis, sent_2BS).view(-1, *sent_2BS.shape)

    def sum(self, sent_2BS: Tensor) -> Tensor:
        """Add up what all ranks have found, in place."""
        assert self.axis is not None
        return self.comm.run(Kind.ALL_REDUCE, self.axis, sent_2BS)


class _SharedGroupNorm(torch.autograd.Function):
    """It gives (x - mean) / std over each group * weight + bias, of x [B, C, H, W]; weight, bias: [B, C]."""

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, x_BCHW: Tensor, weight_BC: Tensor, bias_BC: Tensor, sharing: _Sharing, eps: float
    ) -> Tensor:
        x_BCHW, groups = x_BCHW.contiguous(), sharing.groups
        own_2BG, sent_2BS = parts.own_moments(x_BCHW, groups)
        found_R2BS = sharing.gather(sent_2BS)
        normal_BCHW, moments_2M = parts.group_norm(x_BCHW, own_2BG, found_R2BS, groups, weight_BC, bias_BC, eps)
        ctx.save_for_backward(x_BCHW, moments_2M, weight_BC)
        ctx.sharing, ctx.eps = sharing, eps
        return normal_BCHW

    @staticmethod
    def backward(ctx, g_BCHW: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # type: ignore[no-untyped-def]
        x_BCHW, moments_2M, weight_BC = ctx.saved_tensors
        sharing, g_BCHW = ctx.sharing, g_BCHW.contiguous()
        groups, elements = sharing.groups, sharing.channels * x_BCHW.shape[2:].numel()
        sums_2BC, own_2BG, sent_2BS = parts.gradient_sums(g_BCHW, x_BCHW, moments_2M, groups, weight_BC, ctx.eps)
        dx_BCHW = parts.group_norm_gradient(
            g_BCHW, x_BCHW, moments_2M, own_2BG, sharing.sum(sent_2BS), groups, weight_BC, elements, ctx.eps
        )
        return dx_BCHW, *sums_2BC, None, None


class ScaledGroupNorm(nn.GroupNorm):
    """It is the serial norm of groups, which each image scales and shifts by numbers [B, C] of its own."""

    def forward(self, x_BCHW: Tensor, scale_BC: Tensor, shift_BC: Tensor) -> Tensor:  # type: ignore[override]
        """Give norm * (1 + scale) + shift."""
        normal_BCHW: Tensor = super().forward(x_BCHW)
        return normal_BCHW * (1 + scale_BC[:, :, None, None]) + shift_BC[:, :, None, None]


class GroupNorm(nn.Module):
    """It normalises [B, C / G(axis), H, W] over each group of channels; shape and dtype stay.

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
        """Raises UsageError unless the groups divide the channels, and the axis every part of them."""
        super().__init__()
        self.schedule, self.weight, self.bias, self.eps = schedule, weight, bias, eps
        wide = torch.promote_types(schedule.compute_dtype, torch.float32)
        self.sharing = _Sharing(comm, placement, groups, weight.device, wide)

    def forward(self, x_BCHW: Tensor, scale_BC: Tensor | None = None, shift_BC: Tensor | None = None) -> Tensor:
        """Give the norm, or norm * (1 + scale) + shift where both are given."""
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if not self.sharing.needed:
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
