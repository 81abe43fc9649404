"""The hash of places: on tensors what it is in whole numbers, and the numbers that it has always been."""

import hashlib

import pytest
import torch

from engine.layers.counter_random import BatchRows, keep_mask, mix, mix_bits, words_of

WORD = (1 << 32) - 1
MIXED = {0: 0, 1: 824515495, 2: 1722258072, 1 << 31: 1029333365, WORD: 539527247}


@pytest.mark.parametrize("spare", [None, torch.empty(4099, dtype=torch.int32)], ids=["new", "spare"])
def test_bits_are_mixed_as_whole_numbers_are(spare: torch.Tensor | None) -> None:
    numbers = [*MIXED, *(17 * step**3 & WORD for step in range(4094))]
    words = torch.tensor(numbers).to(torch.int32)
    mixed = mix_bits(words, spare)
    assert mixed is words
    assert [word & WORD for word in mixed.tolist()] == [mix(number) for number in numbers]
    assert {number: mix(number) for number in MIXED} == MIXED


def test_numbers_have_words_of_their_own_beyond_32_bits_too() -> None:
    numbers = torch.cat([torch.arange(1 << 16), torch.arange(1 << 16) + (1 << 32) - 7, torch.arange(9) << 40])
    words = words_of(numbers, 5)
    assert [word & WORD for word in words[:: 1 << 12].tolist()] == [
        mix(5 ^ (number & WORD)) ^ mix(number >> 32) for number in numbers[:: 1 << 12].tolist()
    ]
    assert len(words[: 1 << 16].unique()) == 1 << 16
    assert len(words.unique()) > 0.9999 * len(numbers.unique())
    assert (words == words_of(numbers, 6)).double().mean() < 1e-3


def test_a_dropout_mask_is_the_one_that_it_has_always_been() -> None:
    rows = BatchRows((1 << 40) + 3, 5, torch.arange(1 << 33, (1 << 33) + 8))
    mask = keep_mask(rows, 2, 100, range(17, 400), 0.1)
    assert hashlib.sha256(mask.numpy().tobytes()).hexdigest()[:16] == "63a2009d773ef555"
