"""Hash places in a tensor: the bits look random, and are the same whichever part of it a rank holds, and where.

All is 32-bit integer arithmetic, so that every device finds the same.
"""

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
    """Mix the bits of int32 alike, in place: half the memory. Products wrap; a shift carries the sign along.

    spare: as large, for what comes between; on a processor, new memory would cost as much as the arithmetic.
    """
    for _ in range(2):
        words.bitwise_xor_(_upper_half(words, spare)).mul_(_FACTOR)
    return words.bitwise_xor_(_upper_half(words, spare))


def _upper_half(words: Tensor, spare: Tensor | None) -> Tensor:
    return torch.bitwise_right_shift(words, 16, out=spare).bitwise_and_(_HALF)


def words_of(numbers: Tensor, key: int) -> Tensor:
    """Make an int32 word of each int64 number, by a key of 32 bits. Two numbers below 2^32 never have the same."""
    return (mix(key ^ (numbers & MASK)) ^ mix(numbers >> 32)).to(torch.int32)


def key_of(seed: int, *words: int) -> int:
    """Make a key of 32 bits of a seed of 64, and of what tells its uses apart."""
    key = seed & MASK
    for word in (seed >> 32, *words):
        key = mix(key ^ (word & MASK)) + ODD & MASK
    return key
