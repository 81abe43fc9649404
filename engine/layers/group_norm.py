"""GroupNorm works on channels that an axis splits; it may scale and shift what comes out by image (AdaGN).

Where every group is wholly on one rank it is PyTorch's own kernel. Else the statistics of groups that straddle ranks
are shared, by one collective forward and one backward over the axis, as those of a split LayerNorm are (norm.py):
(mean, variance), never below float32. B images, C channels of a rank, H x W = P pixels, M = B C rows, G groups of all
ranks, S those that straddle ranks, R ranks of the axis, N channels that a rank has at most of one group.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.comm.funnel import Comm, Kind
from engine.layers import norm_parts as parts
from engine.layers.cast import cast
from engine.layers.channel_groups import channel_counts, straddling
from engine.overlap.schedule import WeightSchedule
from engine.placement import Placement


class _Groups:
    """It knows which channels of this rank make up which groups, and adds up over them, always in the same order."""

    def __init__(self, comm: Comm, placement: Placement, groups: int, device: torch.device, dtype: torch.dtype) -> None:
        self.comm, self.axis = comm, placement.split[0]
        counts = channel_counts(placement, comm.grid, groups)
        own = counts[comm.coords[self.axis] if self.axis else 0]
        self.channels = placement.shape[0] // groups
        """So many channels has a group."""
        self.own = len(own)
        """Of so many groups has this rank channels."""
        shared = straddling(placement, comm.grid, groups)
        self.shares = bool(shared)
        of_C = list(own.elements())
        taken_G = [[place for place, of in enumerate(of_C) if of == group] for group in range(groups)]
        most = max(map(len, taken_G))
        channels_GN = [taken + [0] * (most - len(taken)) for taken in taken_G]
        counted_GN = [[1] * len(taken) + [0] * (most - len(taken)) for taken in taken_G]
        counts_R1S = [[[count[group] for group in shared]] for count in counts]
        self._of_C, self._channels_GN, self._shared_S = (
            torch.tensor(places, dtype=torch.int64, device=device) for places in (of_C, channels_GN, shared)
        )
        self._counted_GN, self._counts_R1S = (
            torch.tensor(numbers, dtype=dtype, device=device) for numbers in (counted_GN, counts_R1S)
        )

    def sum(self, of_BC: Tensor) -> Tensor:
        """Add up over this rank's channels of each group, [B, G]."""
        return (of_BC[..., self._channels_GN] * self._counted_GN).sum(-1)

    def spread(self, of_BG: Tensor) -> Tensor:
        """Give each of this rank's channels what its group has, [B, C]."""
        return of_BG.index_select(-1, self._of_C)

    def moments(self, mean_BC: Tensor, variance_BC: Tensor) -> tuple[Tensor, Tensor]:
        """Combine the moments of channels to those of groups, [B, G]; of groups that other ranks hold they mean
        nothing.
        """
        count_G = self._counted_GN.sum(1).clamp(min=1)
        mean_BG = self.sum(mean_BC) / count_G
        variance_BG = self.sum(variance_BC + (mean_BC - self.spread(mean_BG)).square()) / count_G
        sent_2BS = torch.stack([mean_BG, variance_BG]).index_select(2, self._shared_S)
        assert self.axis is not None
        found_R2BS = self.comm.run(Kind.ALL_GATHER, self.axis, sent_2BS).view(-1, *sent_2BS.shape)
        means_RBS, variances_RBS = found_R2BS.unbind(1)
        mean_BS = (means_RBS * self._counts_R1S).sum(0) / self.channels
        deviations_RBS = variances_RBS + (means_RBS - mean_BS).square()
        variance_BS = (deviations_RBS * self._counts_R1S).sum(0) / self.channels
        return mean_BG.index_copy_(1, self._shared_S, mean_BS), variance_BG.index_copy_(1, self._shared_S, variance_BS)

    def total(self, of_2BC: Tensor) -> Tensor:
        """Add up over all channels of each group, [2, B, G], those of other ranks included."""
        of_2BG = self.sum(of_2BC)
        assert self.axis is not None
        shared_2BS = self.comm.run(Kind.ALL_REDUCE, self.axis, of_2BG.index_select(2, self._shared_S))
        return of_2BG.index_copy_(2, self._shared_S, shared_2BS)


class _SharedGroupNorm(torch.autograd.Function):
    """It gives (x - mean) / std over each group * weight + bias, of x [B, C, H, W]; weight, bias: [B, C].

    A channel of an image is a row to the norms' functions.
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx, x_BCHW: Tensor, weight_BC: Tensor, bias_BC: Tensor, groups: _Groups, eps: float
    ) -> Tensor:
        x_MP = _rows(x_BCHW)
        moments_2BC = parts.moments(x_MP)[1].view(2, *weight_BC.shape)
        mean_BG, variance_BG = groups.moments(*moments_2BC)
        mean_M1, rstd_M1 = (_column(groups.spread(of_BG)) for of_BG in (mean_BG, (variance_BG + eps).rsqrt_()))
        ctx.save_for_backward(x_MP, mean_M1, rstd_M1, weight_BC)
        ctx.groups = groups
        return parts.normalised(x_MP, mean_M1, rstd_M1, _column(weight_BC), _column(bias_BC)).view(x_BCHW.shape)

    @staticmethod
    def backward(ctx, g_BCHW: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # type: ignore[no-untyped-def]
        x_MP, mean_M1, rstd_M1, weight_BC = ctx.saved_tensors
        groups: _Groups = ctx.groups
        g_MP = _rows(g_BCHW)
        sums_2BC = parts.row_sums(g_MP, x_MP, mean_M1, rstd_M1).view(2, *weight_BC.shape)
        totals_2M = groups.spread(groups.total(sums_2BC * weight_BC)).flatten(1)
        pixels = groups.channels * x_MP.shape[1]
        dx_MP = parts.norm_gradient(g_MP, x_MP, mean_M1, rstd_M1, _column(weight_BC), totals_2M, pixels)
        return dx_MP.view(g_BCHW.shape), *sums_2BC, None, None


def _rows(x_BCHW: Tensor) -> Tensor:
    return x_BCHW.flatten(2).flatten(0, 1)


def _column(of_BC: Tensor) -> Tensor:
    return of_BC.reshape(-1, 1)


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
        self.groups = _Groups(comm, placement, groups, weight.device, wide)

    def forward(self, x_BCHW: Tensor, scale_BC: Tensor | None = None, shift_BC: Tensor | None = None) -> Tensor:
        """Give the norm, or norm * (1 + scale) + shift where both are given."""
        if self.groups.shares:
            weight_BC, bias_BC = (of_C.expand(x_BCHW.shape[:2]) for of_C in (self.weight, self.bias))
            if scale_BC is not None and shift_BC is not None:
                weight_BC = weight_BC + weight_BC * scale_BC
                bias_BC = bias_BC + bias_BC * scale_BC + shift_BC
            return _SharedGroupNorm.apply(x_BCHW, weight_BC, bias_BC, self.groups, self.eps)
        weight, bias = cast(self.weight, self.schedule), cast(self.bias, self.schedule)
        normal_BCHW = F.group_norm(x_BCHW, self.groups.own, weight, bias, self.eps)
        if scale_BC is None or shift_BC is None:
            return normal_BCHW
        return torch.addcmul(shift_BC[:, :, None, None], normal_BCHW, 1 + scale_BC[:, :, None, None])
