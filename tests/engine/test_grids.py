"""Grids and batches of a number of devices."""

from math import comb, prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Batch
from engine.errors import UsageError
from engine.footprint.fit import check_grid
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.catalogue import lookup
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.planning.grids import FAR, NEAR, SearchSpace, factorisations

GPT = GPTConfig("m", layers=3, hidden=96, heads=12, vocabulary=120, sequence=16)
LLAMA = LlamaConfig("m", layers=2, hidden=48, heads=6, kv_heads=3, ffn=90, vocabulary=60, sequence=8)
EVEN = {"gpt": 12, "llama": 3}
"""Numbers that x divides where each rank has as many heads and features of the feed-forward."""


def _is_valid(model: Architecture, grid: Grid, batch: Batch) -> bool:
    try:
        check_grid(model, grid, batch)
    except UsageError:
        return False
    return True


@settings(max_examples=40)
@given(st.lists(st.sampled_from([2, 2, 2, 3, 3, 5, 7, 11]), max_size=7))
def test_every_ordered_factorisation_is_there_once(primes: list[int]) -> None:
    """Each prime's exponent e is laid over four axes in (e + 3 over 3) ways."""
    grids = list(factorisations(prod(primes)))
    assert {grid.size for grid in grids} == {prod(primes)}
    assert len(set(grids)) == len(grids) == prod(comb(primes.count(p) + 3, 3) for p in set(primes))


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("batch", [Batch(48), Batch(60, micro=2)], ids=["48", "60 by 2"])
def test_valid_grids_are_those_of_equal_shares_that_the_checks_of_a_run_let_pass(
    model: Architecture, batch: Batch
) -> None:
    space = SearchSpace(model, batch.sequences, exact=True, micro=batch.micro)
    for ranks in (1, 6, 8, 12, 15, 30, 32):
        passing = {
            grid for grid in factorisations(ranks) if EVEN[model.family] % grid.x == 0 and _is_valid(model, grid, batch)
        }
        assert set(space.grids(ranks, batch.sequences)) == passing
        assert (space.batch(ranks) is not None) == bool(passing)


@pytest.mark.parametrize(
    ("ranks", "tokens", "sequences"),
    [
        (8192, 16.8e6, 8192),  # as the papers round
        (8192, 4e6, 2048),
        (6144, 16.8e6, 8192),  # the three is taken by x or y
        (1000, 10.3e6, 5000),  # which all grids can share, and no power of two is near
        (1001, 4e6, 2002),
    ],
)
def test_a_batch_in_tokens_is_one_that_devices_can_share(ranks: int, tokens: float, sequences: int) -> None:
    assert SearchSpace(lookup("gpt-80b"), tokens / 2048).batch(ranks) == sequences


@settings(max_examples=30)
@given(st.integers(1, 200), st.floats(1, 1000), st.sampled_from([None, 2, 3]))
def test_a_batch_that_is_taken_is_near_and_has_a_valid_grid(ranks: int, asked: float, micro: int | None) -> None:
    space = SearchSpace(GPT, asked, micro=micro)
    taken = space.batch(ranks)
    near = [n for n in range(1, int(asked * (1 + FAR)) + 1) if abs(n - asked) <= FAR * asked]
    shared = [n for n in near if any(n % part == 0 for part in space.parts(ranks))]
    if taken is None:
        assert not shared
        return
    assert space.grids(ranks, taken)
    assert taken in shared
    assert abs(taken - asked) <= max(NEAR * asked, min(abs(n - asked) for n in shared))


def test_no_valid_grid_is_told_with_the_reason_and_the_nearest_numbers_that_have_one() -> None:
    space = SearchSpace(lookup("gpt-80b"), 8192, exact=True)
    with pytest.raises(UsageError, match=r"8191.*8191.*8192.*: 8192\.$"):
        space.check(8191)
    near = SearchSpace(lookup("gpt-80b"), 8203)
    with pytest.raises(UsageError, match=r"10%.*: 6006 and 6008\.$"):
        near.check(6007)
    with pytest.raises(UsageError, match=r"24 \(24x1\).* 5.*1 seq"):
        SearchSpace(lookup("gpt-60b"), 1, exact=True).check(120)


@pytest.mark.parametrize(("ranks", "sequences"), [(7, 8), (13, 48), (121, 64), (30, 7)])
def test_the_nearest_number_with_a_valid_grid_is_the_nearest(ranks: int, sequences: int) -> None:
    def valid(number: int) -> bool:
        return any(_is_valid(GPT, grid, Batch(sequences)) for grid in factorisations(number))

    away = min(abs(n - ranks) for n in range(1, 2 * ranks) if valid(n))
    fitting = {n for n in (ranks - away, ranks + away) if n > 0 and valid(n)}
    assert set(SearchSpace(GPT, sequences, exact=True).nearest(ranks)) == fitting - {ranks}


@pytest.mark.parametrize(
    ("space", "ranks", "said"),
    [
        (SearchSpace(GPT, 8, exact=True, micro=3), 4, "Micro-batches of 3 don't divide a batch of 8 .* 1, 2, 4, 8"),
        (SearchSpace(GPT, 8, exact=True), 0, "at least one device"),
        (SearchSpace(GPT, 0, exact=True), 4, "at least one device and one sample, but 4 devices and a batch of 0"),
    ],
)
def test_what_can_be_no_job_is_told(space: SearchSpace, ranks: int, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        space.check(ranks)


def test_a_pipeline_is_found_where_ranks_have_no_grid_of_one_stage() -> None:
    """Three divide neither heads nor hidden nor batch: of six ranks a stage has two, of three stages."""
    model = GPTConfig("m", layers=4, hidden=64, heads=4, vocabulary=128, sequence=16)
    assert SearchSpace(model, 16, exact=True).batch(6) is None
    for stages in (3, None):
        space = SearchSpace(model, 16, exact=True, stages=stages)
        assert space.check(6) == 16
        found = {str(grid) for grid in space.pipelines(6, 16)}
        assert found == {"1x1x1x2p3", "1x1x1x2P3", "1x1x2x1p3", "1x2x1x1p3", "2x1x1x1p3"}
    with pytest.raises(UsageError, match=r"6 devices.*2 .*--pipe"):
        SearchSpace(model, 16, exact=True, stages=2).check(6)
    with pytest.raises(UsageError, match="6 devices has 3 "):
        SearchSpace(model, 16, exact=True, stages=3, micro=8).check(6)
