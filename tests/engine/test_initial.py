"""Initial values: normal numbers, unlike in all that they depend on, the same however they are cut."""

import math
from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist
from unittest.mock import patch

import pytest
import torch
from scipy import stats
from torch import Tensor

from engine.batch import CHUNK_BYTES
from engine.grid import SPLITTING_FEATURES, Coords, Grid
from engine.layers.counter_random import mix, mix_bits
from engine.parallel import initial as module
from engine.parallel.initial import LARGEST, fill, initial, initial_rows
from engine.placement import Constant, Gaussian, Placement, Uniform

WORD = (1 << 32) - 1
ROWS, COLUMNS = 600, 1000
PINNED = [2.0213542, -1.5255084, 0.6166836, 0.3986658, 0.06633896, -0.21365134]
NEAR = 4.5
"""Standard errors, which one in 150,000 is beyond; the numbers are the same in each run."""


def weight(name: str = "weight", shape: tuple[int, ...] = (ROWS, COLUMNS), std: float = 1.0) -> Placement:
    split = (*SPLITTING_FEATURES, None, None)[: len(shape)]
    return Placement(name, shape, split, True, Gaussian(std))


def drawn(name: str = "weight", seed: int = 3) -> Tensor:
    return initial(weight(name), Grid(), Coords(0, 0, 0, 0), seed).view(ROWS, COLUMNS).double()


def in_whole_numbers(placement: Placement, seed: int, row: int, column: int) -> float:
    """Return the same value by Python's integers and its own normal distribution."""
    first, second, third = module._keys(seed, placement.name)

    def word(number: int, key: int) -> int:
        return mix(key ^ (number & WORD)) ^ mix(number >> 32)

    bits = mix(mix(word(row, first) ^ word(column, third)) ^ word(row, second))
    signed = (bits >> 8) - (1 << 24 if bits >> 31 else 0)
    assert isinstance(placement.init, Gaussian)
    return placement.init.std * NormalDist().inv_cdf(0.5 + (signed + 0.5) * 2**-24)


@pytest.mark.parametrize("seed", [0, 1])
def test_values_are_normal_to_their_tails(seed: int) -> None:
    values = drawn(seed=seed).flatten()
    count = len(values)
    assert stats.kstest(values.numpy(), "norm").pvalue > 0.01
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        error = (values**power).mean().item() - moment
        assert abs(error) < NEAR * math.sqrt(variance / count), power
    for limit in (1, 2, 3, 4):
        share = math.erfc(limit / math.sqrt(2))
        assert abs((values.abs() > limit).sum() - count * share) < NEAR * math.sqrt(count * share)
    assert values.abs().max() <= LARGEST


def test_the_outermost_values_are_finite_and_the_largest_that_can_come() -> None:
    bits = torch.tensor([-(1 << 31), -(1 << 31) + 255, -1, 0, (1 << 31) - 256, (1 << 31) - 1], dtype=torch.int32)
    values = module.draw_from_bits(bits, Gaussian(1.0), torch.empty(6))
    assert torch.equal(values, -values.flip(0))
    assert LARGEST - 1e-4 < values[-1].item() <= LARGEST
    assert 0 < values[3].item() < 1e-7


def test_uniform_values_fill_their_range_evenly_and_never_reach_beyond() -> None:
    placement = replace(weight(shape=(400, 500), std=1.0), init=Uniform(0.25))
    values = initial(placement, Grid(), Coords(), 3).double()
    assert values.abs().max() <= 0.25
    assert abs(values.mean()) < NEAR * 0.25 / math.sqrt(3 * values.numel())
    counts = torch.histc(values, 10, -0.25, 0.25)
    assert ((counts - values.numel() / 10).abs() < NEAR * math.sqrt(values.numel() / 10)).all()


PAIRS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    **{f"columns {step} apart": lambda x, step=step: (x[:, step:], x[:, :-step]) for step in (1, 2, 64, 256)},
    **{f"rows {step} apart": lambda x, step=step: (x[step:], x[:-step]) for step in (1, 2, 64, 256)},
    "rows and columns": lambda x: (x[:, :ROWS], x[:, :ROWS].t()),
    "diagonals": lambda x: (x[1:, 1:], x[:-1, :-1]),
    "names": lambda x: (x, drawn("weighs")),
    "seeds": lambda x: (x, drawn(seed=4)),
    "distant seeds": lambda x: (x, drawn(seed=3 + (1 << 32))),
}


@pytest.mark.parametrize("name", PAIRS)
def test_neighbours_names_and_seeds_have_nothing_to_do_with_each_other(name: str) -> None:
    first, second = PAIRS[name](drawn())
    for one, other in ((first, second), (first**2 - 1, second**2 - 1)):
        correlation = (one * other).mean() / (one.std() * other.std())
        assert abs(correlation) < NEAR / math.sqrt(one.numel()), name


def test_what_is_related_by_a_tenth_would_be_noticed() -> None:
    values = drawn()
    related = values[:, 1:] + 0.1 * values[:, :-1]
    assert (related * values[:, :-1]).mean() > 10 * NEAR / math.sqrt(values.numel())


def test_rows_and_columns_of_all_parameters_are_unlike() -> None:
    parts = torch.cat([drawn(name, seed)[:300, :300] for name in ("a", "b", "aa") for seed in (0, 1)])
    assert len(parts[:, :8].unique(dim=0)) == len(parts)
    assert len(parts[:300].t()[:, :8].unique(dim=0)) == 300


@pytest.mark.parametrize(
    ("shape", "offsets", "sizes"),
    [
        ((5,), (2,), (3,)),
        ((1 << 34,), ((1 << 33) - 2,), (5,)),
        ((70_000, 70_000), (65_534, 69_990), (4, 7)),
        ((1 << 33, 8), ((1 << 32) - 2, 3), (5, 4)),
        ((3, 1 << 33), (1, (1 << 32) - 2), (2, 5)),
        ((4, 5, 3, 3), (1, 2, 0, 1), (2, 3, 3, 2)),
    ],
    ids=str,
)
def test_any_part_of_a_parameter_has_the_values_of_its_places(
    shape: tuple[int, ...], offsets: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    """Beyond 2^32 elements, rows and columns too."""
    placement = weight(shape=shape, std=0.02)
    part = fill(torch.empty(sizes, dtype=torch.float64), placement, offsets, seed=1 << 35)
    for at in torch.ones(sizes).nonzero().tolist():
        row, *others = (offset + step for offset, step in zip(offsets, at, strict=True))
        column = 0
        for number, size in zip(others, shape[1:], strict=True):
            column = column * size + number
        assert part[tuple(at)].item() == pytest.approx(in_whole_numbers(placement, 1 << 35, row, column), rel=1e-8)


def test_values_are_the_ones_that_they_have_always_been() -> None:
    assert drawn()[:2, :3].flatten().tolist() == pytest.approx(PINNED, rel=1e-6)


@pytest.mark.parametrize("num_bytes", [4, 4 * 1000, 4 * 7777])
def test_how_many_rows_are_drawn_at_once_changes_nothing(num_bytes: int) -> None:
    whole = drawn()[:50].float()
    with patch.dict(CHUNK_BYTES, cpu=num_bytes):
        assert torch.equal(initial_rows(weight(), range(50), 3), whole)
        columns = fill(torch.empty(70, 50), weight(), (0, 11), 3)[:50, :5]
    assert torch.equal(columns, whole[:, 11:16])


def test_rows_are_those_of_the_whole() -> None:
    assert torch.equal(initial_rows(weight(), range(7, 40), 3), drawn()[7:40].float())
    assert initial_rows(weight(), range(7, 7), 3).shape == (0, COLUMNS)
    constant = Placement("norm", (5,), (None,), False, Constant(1.0))
    assert initial_rows(constant, range(1, 4), 3).tolist() == [1.0, 1.0, 1.0]


def test_a_rank_draws_what_it_keeps_and_none_on_the_meta_device(monkeypatch: pytest.MonkeyPatch) -> None:
    mixed: list[int] = []

    def counted(words: Tensor, spare: Tensor) -> Tensor:
        mixed.append(words.numel())
        return mix_bits(words, spare)

    monkeypatch.setattr(module, "mix_bits", counted)
    grid = Grid(2, 2, 3, 1)
    for rank in range(grid.size):
        mixed.clear()
        kept = initial(weight(), grid, grid.coords(rank), 3)
        assert sum(mixed) == 2 * kept.numel() == 2 * ROWS * COLUMNS // grid.size
    mixed.clear()
    shape = initial(weight(), grid, grid.coords(0), 3, "meta")
    assert (shape.device.type, shape.numel(), mixed) == ("meta", ROWS * COLUMNS // grid.size, [])
