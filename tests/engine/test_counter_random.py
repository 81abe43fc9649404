"""Counter-based random numbers: hashes, masks and noise."""

import hashlib

import pytest
import torch

from engine.layers.counter_random import BatchRows, mix, mix_bits, normal, time_steps, words_of
from engine.layers.dropout import keep_mask

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
    mask = keep_mask(rows, 2, rows.places(100), range(17, 400), 0.1)
    assert hashlib.sha256(mask.numpy().tobytes()).hexdigest()[:16] == "63a2009d773ef555"


IMAGES, SHAPE, STEPS = 512, (3, 32, 32), 1000


def rows(seed: int = 7, step: int = 3, first: int = 0, count: int = IMAGES) -> BatchRows:
    return BatchRows(seed, step, torch.arange(first, first + count))


def of(shape: tuple[int, ...] = SHAPE, **which: int) -> torch.Tensor:
    return normal(rows(**which), shape, torch.float64)


def off(values: torch.Tensor, expected: float, deviation: float) -> float:
    """Return the standard errors by which the mean is off."""
    return float((values.mean() - expected).abs()) / deviation * values.numel() ** 0.5


@pytest.mark.parametrize("seed", [0, 7, (1 << 40) + 7])
def test_noise_is_standard_normal(seed: int) -> None:
    noise = of(seed=seed)
    assert off(noise, 0, 1) < 4
    assert off(noise**2, 1, 2**0.5) < 4
    assert off(noise**3, 0, 15**0.5) < 4
    assert off(noise**4, 3, 96**0.5) < 4
    for bound in (-3, -1, 0, 0.5, 2, 4):
        below = float(torch.special.ndtr(torch.tensor(bound, dtype=torch.float64)))
        assert off((noise < bound).double(), below, (below * (1 - below)) ** 0.5) < 4


def test_noise_has_nothing_to_do_with_that_beside_it() -> None:
    seed = 7
    noise = of(seed=seed)
    beside = {
        "columns": (noise[..., 1:], noise[..., :-1]),
        "rows": (noise[..., 1:, :], noise[..., :-1, :]),
        "channels": (noise[:, 1:], noise[:, :-1]),
        "images": (noise[1:], noise[:-1]),
        "steps": (noise, of(seed=seed, step=4)),
        "seeds": (noise, of(seed=seed + 1)),
        "upper halves of seeds": (noise, of(seed=seed + (1 << 32))),
    }
    assert {name: off(a * b, 0, 1) < 4 and off(a**2 * b**2, 1, 8**0.5) < 4 for name, (a, b) in beside.items()} == (
        dict.fromkeys(beside, True)
    )


@pytest.mark.parametrize("cuts", [[5], [1, 4], [2, 3], [1] * 5])
@pytest.mark.parametrize("shape", [(3, 8, 8), (3, 5, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_split_of_a_batch_gives_the_same(cuts: list[int], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    first = (1 << 33) + 1
    starts = [first + sum(cuts[:part]) for part in range(len(cuts))]
    parts = [rows(first=start, count=count) for start, count in zip(starts, cuts, strict=True)]
    whole = rows(first=first, count=5)
    assert torch.equal(torch.cat([normal(part, shape, dtype) for part in parts]), normal(whole, shape, dtype))
    assert torch.equal(torch.cat([time_steps(part, STEPS) for part in parts]), time_steps(whole, STEPS))


def test_time_steps_are_all_drawn_alike() -> None:
    drawn = torch.cat([time_steps(rows(step=step, count=2048), STEPS) for step in range(100)])
    assert (int(drawn.min()), int(drawn.max())) == (1, STEPS)
    expected = len(drawn) / STEPS
    excess = float(((torch.bincount(drawn, minlength=STEPS + 1)[1:] - expected) ** 2 / expected).sum()) - (STEPS - 1)
    assert abs(excess) < 4 * (2 * (STEPS - 1)) ** 0.5
    by_step = drawn.view(100, 2048).double()
    deviation = (STEPS**2 - 1) / 12
    centred = by_step - (STEPS + 1) / 2
    assert off(centred[1:] * centred[:-1], 0, deviation) < 4
    assert off(centred[:, 1:] * centred[:, :-1], 0, deviation) < 4


def test_noise_is_what_it_has_always_been() -> None:
    """Its words, that is: the last bits of logarithms and cosines are the machine's."""
    steps = torch.cat([time_steps(rows(step=step), 1 << 32) for step in range(8)])
    assert hashlib.sha256(steps.numpy().tobytes()).hexdigest()[:16] == "cdab48adcd4249ae"
