"""Dropout whose mask is a hash, so that it is the same on every grid, on one device, and in a recomputation.

An element's fate depends on (seed, step, site, global row, global column) alone. A random generator can't do that: its
numbers depend on the shape that a rank happens to hold.
"""

from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor, nn


@dataclass(slots=True)
class BatchPosition:
    """Which rows of the global batch a rank is working on. One object a model, set before each micro-batch.

    sequences: [B], numbers in the global batch.
    """

    seed: int = 0
    step: int = 0
    sequences: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64, device="cpu"))


_MASK = (1 << 32) - 1


Word = TypeVar("Word", int, Tensor)


def _mix(value: Word) -> Word:
    """A bijective scrambling of 32-bit numbers (multiply and xor-shift, as integer hashes do); int64 in tensors."""
    value = (value ^ (value >> 16)) * 0x45D9F3B & _MASK
    value = (value ^ (value >> 16)) * 0x45D9F3B & _MASK
    return value ^ (value >> 16)


def keep_mask(position: BatchPosition, site: int, length: int, columns: range, p: float) -> Tensor:
    """Bool [B, length, len(columns)]: which elements of a [sequence, token, feature] tensor are kept."""
    device = position.sequences.device
    key = position.seed & _MASK
    for word in (position.seed >> 32, position.step, site):
        key = _mix(key ^ (word & _MASK)) + 0x9E3779B9 & _MASK
    rows_BS = position.sequences.unsqueeze(1) * length + torch.arange(length, device=device)
    rows_BS = _mix(key ^ (rows_BS & _MASK)) ^ _mix(rows_BS >> 32)
    columns_H = _mix(torch.arange(columns.start, columns.stop, device=device) + 0x9E3779B9 & _MASK)
    return _mix(rows_BS.unsqueeze(2) ^ columns_H) >= int(p * 2**32)


class Dropout(nn.Module):
    """Drops features of [B, S, H] with probability p in training. site: which dropout of the network this is.

    first_column: the global number of the first of the H features that this rank holds.
    """

    def __init__(self, p: float, site: int, position: BatchPosition, first_column: int = 0) -> None:
        super().__init__()
        self.p, self.site, self.position, self.first_column = p, site, position, first_column

    def forward(self, x_BSH: Tensor) -> Tensor:
        """Scale what is kept by 1 / (1 - p)."""
        if not self.training or self.p == 0:
            return x_BSH
        columns = range(self.first_column, self.first_column + x_BSH.shape[2])
        keep_BSH = keep_mask(self.position, self.site, x_BSH.shape[1], columns, self.p)
        return x_BSH * keep_BSH / (1 - self.p)
