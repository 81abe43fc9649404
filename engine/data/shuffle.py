"""Random numbers of (seed, position) alone: hashes of 64-bit words, and permutations of them."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
"""Arrays by name, whose first dim is the rows of a batch."""
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

ROUNDS = 3
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def mix(words: Words) -> Words:
    """Map 64-bit words to others one to one, so that they look random (the finaliser of splitmix64)."""
    words = words + np.uint64(_GOLDEN)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def key(seed: int, stream: int) -> Words:
    """Make one word, as an array of one, for each (seed, stream); any integers."""
    return mix(mix(np.array([seed & _MASK], np.uint64)) ^ np.array([stream & _MASK], np.uint64))


def permute(index: Ints, size: int, keys: Words) -> Ints:
    """Return the place of each index of 0..size-1 in the permutation that its key selects.

    A Feistel network on pairs (left, right) with left < a and right < b, where a * b is the smallest such
    rectangle over `size`; what lands outside 0..size-1 goes round again. Constant memory, whatever the size.
    """
    a = math.isqrt(size - 1) + 1
    b = -(-size // a)
    out = _feistel(index.astype(np.uint64), a, b, keys)
    while (outside := out >= size).any():
        out[outside] = _feistel(out[outside], a, b, np.broadcast_to(keys, out.shape)[outside])
    return out.astype(np.int64)


def _feistel(words: Words, a: int, b: int, keys: Words) -> Words:
    rows_a, rows_b = np.uint64(a), np.uint64(b)
    right, left = np.divmod(words, rows_a)
    for turn in range(ROUNDS):
        left = (left + mix((keys ^ right) + np.uint64(2 * turn)) % rows_a) % rows_a
        right = (right + mix((keys ^ left) + np.uint64(2 * turn + 1)) % rows_b) % rows_b
    return left + rows_a * right


def shuffle(seed: int, positions: Ints, count: int) -> Ints:
    """Return the sequence (0..count-1) that stands at each position of an endless run of shuffled epochs.

    Position p lies in epoch p // count; every epoch holds each sequence once, in an order of its own.
    """
    epoch, index = np.divmod(positions, count)
    return permute(index, count, mix(key(seed, 1) ^ epoch.astype(np.uint64)))
