"""Embeddings of tokens, positions, patches of images and numbers.

The token table [V, h] has the placement of a linear layer, so that one shard also serves a tied head. Of the position
table [S, h] only the features are split. Patches and waves are read by a linear layer, of whose inputs each rank makes
its own part, so that nothing moves.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.comm.funnel import Comm
from engine.layers.linear import Linear, all_reduce
from engine.overlap.schedule import WeightSchedule
from engine.overlap.weight import ShardedWeight


def add_rows(out_VH: Tensor, rows_M: Tensor, values_MH: Tensor) -> None:
    """Add each row of values to the row of out with its number, in the same order every time.

    On CUDA index_add_ adds by atomics, in whatever order they come, and index_put_ sorts the numbers first; its private
    form spares a host synchronisation for their check, which the forward has made. On a processor both take one row
    after the other, and index_add_ is the fastest: 5.6 ms, index_put_ 7.1, sorted segments 17.9, PyTorch's own gradient
    of an embedding 33 (8,192 rows of 512 into 32,000 in fp32, one core of an AMD EPYC).
    """
    if out_VH.is_cpu:
        out_VH.index_add_(0, rows_M, values_MH)
    else:
        torch._index_put_impl_(out_VH, (rows_M,), values_MH, accumulate=True, unsafe=True)


class _Lookup(torch.autograd.Function):
    """Rows of the gathered tile for the tokens that it holds, zeros for the others."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, shard: Tensor, layer: "TokenEmbedding") -> Tensor:
        table_VH = layer.schedule.gather(layer.sharded)
        rows = tokens.flatten() - layer.first_token
        if layer.split_vocabulary:
            held = (rows >= 0) & (rows < table_VH.shape[0])
            # Zeros for any row do; were all of them for one, a GPU would add them one after the other.
            rows = rows.remainder(table_VH.shape[0])
            O_MH = table_VH.index_select(0, rows).mul_(held.unsqueeze(1))
        else:
            held = None
            O_MH = table_VH.index_select(0, rows)
        if layer.padding is not None:
            taught = tokens.flatten() != layer.padding
            held = taught if held is None else held & taught
        ctx.save_for_backward(rows, held)
        ctx.layer = layer
        return O_MH

    @staticmethod
    def backward(ctx: Any, dO_MH: Tensor) -> tuple[None, None, None]:
        rows, held = ctx.saved_tensors
        layer: TokenEmbedding = ctx.layer
        if held is not None:
            dO_MH = dO_MH * held.unsqueeze(1)

        def fill(out: Tensor, *, add: bool) -> None:
            if not add:
                out.zero_()
            add_rows(out, rows, dO_MH.to(out.dtype))

        # Many tokens add to one row, so the sum is made in the master dtype.
        layer.schedule.accumulate(layer.sharded, fill, layer.weight.dtype)
        return None, None, None


def look_up(tokens: Tensor, layer: "TokenEmbedding") -> Tensor:
    """Return the features [M, h'] of the tokens that this rank has, and zeros for the others."""
    found: Tensor = _Lookup.apply(tokens, layer.weight, layer)
    return found


class TokenEmbedding(nn.Module):
    """Table of tokens [B, S] to features [B, S, h / G(features' axis)], the same along the axis that splits tokens.

    padding: token whose row learns nothing, as torch.nn.Embedding's padding_idx.
    """

    def __init__(
        self, comm: Comm, schedule: WeightSchedule, sharded: ShardedWeight, padding: int | None = None
    ) -> None:
        super().__init__()
        self.comm, self.schedule, self.sharded, self.padding = comm, schedule, sharded, padding
        self.weight = sharded.shard
        axis = sharded.placement.split[0]
        assert axis is not None
        self.axis, self.split_vocabulary = axis, comm.grid[axis] > 1
        self.first_token = comm.coords[axis] * sharded.tile_shape[0]

    def forward(self, tokens_BS: Tensor) -> Tensor:
        """Look up, then sum over the tokens' axis: exactly one rank of it holds a token."""
        O_MH = all_reduce(look_up(tokens_BS, self), self.comm, self.axis)
        return O_MH.unflatten(0, tokens_BS.shape)


class PositionEmbedding(nn.Module):
    """Table of positions [S] to features [S, h / G(their axis)], in the compute dtype."""

    def __init__(self, table: nn.Parameter, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = table
        self.dtype = dtype

    def forward(self, positions: Tensor) -> Tensor:
        return self.weight[positions].to(self.dtype)


def patches(pixels_BCHW: Tensor, side: int) -> Tensor:
    """Cut [B, C, H, W] into squares: [B, N, C p p], row by row, a square's channels one after another."""
    squares = pixels_BCHW.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # [B, C, H / p, p, W / p, p]
    return squares.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


class Patches(nn.Linear):
    """Projection of pixels [B, C, H, W] of any precision to [B, N, h], by squares. side: of a square, in pixels."""

    def __init__(self, channels: int, side: int, features: int) -> None:
        super().__init__(channels * side**2, features)
        self.side = side

    def forward(self, pixels_BCHW: Tensor) -> Tensor:
        return F.linear(patches(pixels_BCHW, self.side).to(self.weight.dtype), self.weight, self.bias)


class PatchesOnGrid(Linear):
    """Projection of [B, C, H, W] to [B, N, h / Gy] on the grid: a transposed layer of k = C p p."""

    side: int

    def forward(self, pixels_BCHW: Tensor) -> Tensor:
        cut_BNK = patches(pixels_BCHW, self.side)
        assert self.in_axis is not None
        width = self.sharded.tile_shape[1]
        own = cut_BNK[..., self.comm.coords[self.in_axis] * width :][..., :width]
        own = F.pad(own, (0, width - own.shape[2]))
        return super().forward(own.to(self.schedule.compute_dtype).contiguous())


LONGEST_PERIOD = 10_000


def waves(numbers_B: Tensor, features: int, *, sines_first: bool = False) -> Tensor:
    """Compute cosines and sines of each number, [B, features] in float64 (Vaswani et al. 2017, 3.5).

    Their periods go from 2 pi to 2 pi 10,000. sines_first: before cosines, and up to the longest period, as Ho et al.'s
    code has it; others end one step before.
    """
    places_W = torch.arange(features // 2, dtype=torch.float64, device=numbers_B.device)
    frequencies_W = torch.exp(-math.log(LONGEST_PERIOD) * places_W / (len(places_W) - sines_first))
    angles_BW = numbers_B.unsqueeze(1) * frequencies_W
    both = (angles_BW.sin(), angles_BW.cos()) if sines_first else (angles_BW.cos(), angles_BW.sin())
    return torch.cat(both, dim=1)


class WaveLinear(nn.Linear):
    """Projection of numbers [B] to [B, n], by features of waves."""

    def __init__(self, features: int, out_features: int, *, sines_first: bool = False) -> None:
        super().__init__(features, out_features)
        self.waves = partial(waves, features=features, sines_first=sines_first)

    def forward(self, numbers_B: Tensor) -> Tensor:
        return F.linear(self.waves(numbers_B).to(self.weight.dtype), self.weight, self.bias)


class WaveLinearOnGrid(Linear):
    """Projection of numbers [B] to [B, n / Gx] on the grid."""

    waves: Callable[[Tensor], Tensor]
    """all waves of numbers"""

    def forward(self, numbers_B: Tensor) -> Tensor:
        waves_BK = self.waves(numbers_B)
        if self.in_axis is not None:
            waves_BK = waves_BK.chunk(self.in_ranks, dim=1)[self.comm.coords[self.in_axis]]
        return super().forward(waves_BK.to(self.schedule.compute_dtype).contiguous())
