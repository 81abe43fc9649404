"""Counter-based random numbers: those of dropout's masks, and noise, as a hash of places.

An element depends on (seed, step, use, global row, element of the row) alone, so it is the same on every grid and
device and in a recomputation, whichever part a rank holds. Hashes are 32-bit integer arithmetic.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

import torch
from torch import Tensor

MASK = (1 << 32) - 1
ODD = 0x9E3779B9
_HALF = (1 << 16) - 1
_FACTOR = 0x45D9F3B

Word = TypeVar("Word", int, Tensor)


def mix(value: Word) -> Word:
    """Scramble 32-bit numbers one to one (multiply and xor-shift, as integer hashes do); int64 in tensors."""
    value = (value ^ (value >> 16)) * _FACTOR & MASK
    value = (value ^ (value >> 16)) * _FACTOR & MASK
    return value ^ (value >> 16)


def mix_bits(words: Tensor, spare: Tensor | None = None) -> Tensor:
    """Mix the bits of int32 as mix does, in place: half the memory. Products wrap; a shift carries the sign along.

    spare: as large, for intermediate values; on a processor, new memory would cost as much as the arithmetic.
    """
    for _ in range(2):
        words.bitwise_xor_(_upper_half(words, spare)).mul_(_FACTOR)
    return words.bitwise_xor_(_upper_half(words, spare))


def _upper_half(words: Tensor, spare: Tensor | None) -> Tensor:
    return torch.bitwise_right_shift(words, 16, out=spare).bitwise_and_(_HALF)


def words_of(numbers: Tensor, key: int) -> Tensor:
    """Hash each int64 number to an int32, by a key of 32 bits. Two numbers below 2^32 never have the same."""
    return (mix(key ^ (numbers & MASK)) ^ mix(numbers >> 32)).to(torch.int32)


def key_of(seed: int, *words: int) -> int:
    """Make a key of 32 bits from a seed of 64, and from words that tell its uses apart."""
    key = seed & MASK
    for word in (seed >> 32, *words):
        key = mix(key ^ (word & MASK)) + ODD & MASK
    return key


@dataclass(frozen=True, slots=True)
class BatchRows:
    """Rows of a global batch that a rank works on. sequences: [B], their numbers in the batch."""

    seed: int
    step: int
    sequences: Tensor

    def places(self, length: int) -> Tensor:
        """Give these samples' tokens their numbers among the batch's, so many of each sample: [B, length]."""
        return self.sequences.unsqueeze(1) * length + torch.arange(length, device=self.sequences.device)


_WORDS = 1 << 32


class Use(IntEnum):
    """Use of random numbers; none is the site of a dropout."""

    TIME = 1 << 30
    RADIUS = TIME + 1
    ANGLE = TIME + 2


def time_steps(rows: BatchRows, last: int) -> Tensor:
    """Draw a step of 1 .. last, all as likely, for each row: [B]."""
    return (_words(rows, Use.TIME, 1).squeeze(1) * last // _WORDS) + 1


def normal(rows: BatchRows, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw standard normal numbers [B, *shape], from two uniform ones each (Box and Muller 1958)."""
    radius, angle = ((_words(rows, use, math.prod(shape)).double() + 0.5) / _WORDS for use in (Use.RADIUS, Use.ANGLE))
    normal_BN = radius.log_().mul_(-2).sqrt_().mul_(angle.mul_(2 * math.pi).cos_())
    return normal_BN.to(dtype).view(-1, *shape)


def _words(rows: BatchRows, use: Use, length: int) -> Tensor:
    """Make int64 numbers of 0 .. 2^32 - 1, [B, length].

    Places are mixed twice: mixed once by a key, those of a batch have the words of another key in another order. A hash
    of the row joined with one of the element would be less work, but many pairs of places would share a word: a mask of
    dropout bears that, the tails of a normal distribution don't.
    """
    key = key_of(rows.seed, rows.step, use)
    elements_N = torch.arange(length, device=rows.sequences.device)
    words_BN = words_of(rows.sequences.unsqueeze(1) * length + elements_N, key)
    return mix_bits(words_BN.add_(key - (1 << 31))).to(torch.int64) & MASK
