"""Noise is a hash of places, so that it is the same on every grid, on one device, and in a recomputation.

An element depends on (seed, step, use, global row, element of the row) alone, as a mask of dropout does.
"""

import math
from collections.abc import Sequence
from enum import IntEnum

import torch
from torch import Tensor

from engine.layers.dropout import BatchRows
from engine.layers.hash import MASK, key_of, mix_bits, words_of

_WORDS = 1 << 32


class Use(IntEnum):
    """It keeps numbers of one use apart from those of others; none is the site of a dropout."""

    TIME = 1 << 30
    RADIUS = TIME + 1
    ANGLE = TIME + 2


def time_steps(rows: BatchRows, last: int) -> Tensor:
    """Draw a step of 1 .. last, all alike, for each row: [B]."""
    return (_words(rows, Use.TIME, 1).squeeze(1) * last // _WORDS) + 1


def normal(rows: BatchRows, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw standard normal numbers [B, *shape], two uniform ones for each (Box and Muller 1958)."""
    radius, angle = ((_words(rows, use, math.prod(shape)).double() + 0.5) / _WORDS for use in (Use.RADIUS, Use.ANGLE))
    normal_BN = radius.log_().mul_(-2).sqrt_().mul_(angle.mul_(2 * math.pi).cos_())
    return normal_BN.to(dtype).view(-1, *shape)


def _words(rows: BatchRows, use: Use, length: int) -> Tensor:
    """Make int64 numbers of 0 .. 2^32 - 1, [B, length].

    Mixed once by a key, the places of a batch have the words of another key in another order, so they are mixed twice.
    A hash of the row and one of the element, joined, would be less work, but many pairs of places would share a word:
    a mask of dropout bears that, the tails of a normal distribution don't.
    """
    key = key_of(rows.seed, rows.step, use)
    elements_N = torch.arange(length, device=rows.sequences.device)
    words_BN = words_of(rows.sequences.unsqueeze(1) * length + elements_N, key)
    return mix_bits(words_BN.add_(key - (1 << 31))).to(torch.int64) & MASK
