"""Dropout's mask is a hash, so that it is the same on every grid, on one device, and in a recomputation.

An element's fate depends on (seed, step, site, global row, global column) alone. A random generator can't do that: its
numbers depend on the shape that a rank happens to hold.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.layers.hash import MASK, ODD, key_of, mix, mix_bits, words_of


@dataclass(frozen=True, slots=True)
class BatchRows:
    """It says which rows of which global batch a rank is working on. sequences: [B], their numbers in the batch."""

    seed: int
    step: int
    sequences: Tensor


_TOP = 1 << 31


def keep_mask(rows: BatchRows, site: int, length: int, columns: range, p: float) -> Tensor:
    """Make a bool [B, length, len(columns)]: which elements of a [sequence, token, feature] tensor are kept."""
    device = rows.sequences.device
    key = key_of(rows.seed, rows.step, site)
    rows_BS = words_of(rows.sequences.unsqueeze(1) * length + torch.arange(length, device=device), key)
    columns_H = mix(torch.arange(columns.start, columns.stop, device=device) + ODD & MASK)
    bits_BSH = mix_bits(rows_BS.unsqueeze(2) ^ columns_H.to(torch.int32))
    return bits_BSH.bitwise_xor_(-_TOP) >= int(p * 2**32) - _TOP  # as numbers without a sign compare


class Dropout(nn.Module):
    """It drops features of [B, S, H] with probability p in training. site: which dropout of the network this is.

    part: which part of all features this rank holds, of parts that are H wide.
    """

    def __init__(self, p: float, site: int, part: int = 0) -> None:
        super().__init__()
        self.p, self.site, self.part = p, site, part

    def forward(self, x_BSH: Tensor, rows: BatchRows | None) -> Tensor:
        """Scale what is kept by 1 / (1 - p). Raises ValueError if it trains without knowing its rows."""
        if not self.training or self.p == 0:
            return x_BSH
        if rows is None:
            raise ValueError("Dropout in training needs the rows of the global batch that it works on.")
        width = x_BSH.shape[2]
        columns = range(self.part * width, (self.part + 1) * width)
        keep_BSH = keep_mask(rows, self.site, x_BSH.shape[1], columns, self.p)
        return (x_BSH * keep_BSH).div_(1 - self.p)


class PixelDropout(Dropout):
    """Dropout of channels of pixels, [B, C, Y, X]; the part of them is of C."""

    def forward(self, x_BCYX: Tensor, rows: BatchRows | None) -> Tensor:
        """Scale what is kept by 1 / (1 - p). Raises ValueError if it trains without knowing its rows."""
        rows_BPC = super().forward(x_BCYX.flatten(2).transpose(1, 2), rows)
        return rows_BPC.transpose(1, 2).reshape_as(x_BCYX)
