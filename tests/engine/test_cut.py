"""A network is cut into stages of equal time, or as a person says."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import UsageError
from engine.models.architecture import Architecture
from engine.models.catalogue import lookup
from engine.models.flops import hardware_flops
from engine.models.gpt.config import GPTConfig
from engine.pipeline.cut import Cut, cut_by_hand, cut_evenly


def gpt(layers: int, vocabulary: int = 64) -> GPTConfig:
    return GPTConfig("cut", layers=layers, hidden=64, heads=4, vocabulary=vocabulary, sequence=32)


def counts(cut: Cut) -> list[int]:
    """Count the blocks of each part in the network's order."""
    return [len(stage[chunk]) for chunk in range(cut.chunks) for stage in cut.blocks]


def slowest(model: Architecture, parts: list[int]) -> float:
    """Return the slowest part's flops: the head is what whole networks leave beside their blocks."""
    block = hardware_flops(gpt(2), 1, recompute=True) - hardware_flops(gpt(1), 1, recompute=True)
    head = hardware_flops(model, 1, recompute=True) - sum(parts) * block
    return max(count * block + (head if part == len(parts) - 1 else 0) for part, count in enumerate(parts))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 10), st.integers(1, 5), st.integers(1, 2), st.sampled_from([64, 1000, 4000]))
def test_no_other_cut_has_a_faster_slowest_part(layers: int, stages: int, chunks: int, vocabulary: int) -> None:
    model, parts = gpt(layers, vocabulary), stages * chunks
    if layers < parts:
        return
    cut = cut_evenly(model, stages, chunks, recomputed=model.layers)
    assert [number for chunk in range(chunks) for stage in cut.blocks for number in stage[chunk]] == list(range(layers))
    ways = [
        [end - start for start, end in zip((0, *ends), (*ends, layers), strict=True)]
        for ends in combinations(range(1, layers), parts - 1)
    ]
    best = min(slowest(model, way) for way in ways)
    assert slowest(model, counts(cut)) == pytest.approx(best)


def test_equal_blocks_are_cut_evenly_and_a_large_head_takes_the_place_of_some() -> None:
    assert counts(cut_evenly(gpt(16), 4, recomputed=16)) == [4, 4, 4, 4]
    assert counts(cut_evenly(gpt(16, vocabulary=4000), 4, recomputed=16)) == [5, 5, 5, 1]
    assert counts(cut_evenly(gpt(7), 1, 2, recomputed=7)) == [4, 3]
    assert counts(cut_evenly(gpt(7), 1, recomputed=7)) == [7]


def test_recomputation_makes_the_head_a_smaller_part_of_the_time() -> None:
    model = gpt(8, vocabulary=1300)
    assert counts(cut_evenly(model, 2, recomputed=model.layers))[1] >= counts(cut_evenly(model, 2, recomputed=0))[1]


@pytest.mark.parametrize("name", ["gpt-5b", "llama-3.1-8b", "bert-large", "vit-s"])
def test_networks_of_all_families_are_cut(name: str) -> None:
    model = lookup(name)
    cut = counts(cut_evenly(model, 4, recomputed=model.layers))
    assert sum(cut) == model.layers
    assert max(cut) - min(cut) <= 3


def test_chunks_go_round_the_stages() -> None:
    cut = cut_by_hand("1,2,3,4,5,6", gpt(21), 3, 2)
    assert cut.blocks == ((range(1), range(6, 10)), (range(1, 3), range(10, 15)), (range(3, 6), range(15, 21)))


def test_a_person_says_how_many_blocks_each_stage_has() -> None:
    assert counts(cut_by_hand("5,7,7,5", gpt(24), 4)) == [5, 7, 7, 5]


@pytest.mark.parametrize("given_", ["5,7,7,6", "12,12", "0,8,8,8", "a,8,8,8", "", "-1,9,8,8", "6;6;6;6"])
def test_stages_that_do_not_add_up_are_refused(given_: str) -> None:
    with pytest.raises(UsageError, match=r"4 numbers.* 24, .*6,6,6,6"):
        cut_by_hand(given_, gpt(24), 4)


def test_more_parts_than_blocks_are_refused() -> None:
    with pytest.raises(UsageError, match=r" 1 block,.* 2 stages.*--pipe.*--layers"):
        cut_evenly(gpt(1), 2, recomputed=0)
    with pytest.raises(UsageError, match=r"6 blocks,.*\b4 stages\b.*\b2"):
        cut_evenly(gpt(6), 4, 2, recomputed=0)
    with pytest.raises(UsageError, match=r" 3 blocks,.* 4 stages"):
        cut_by_hand("1,1,1,0", gpt(3), 4)
    with pytest.raises(UsageError, match=r" 10 blocks, .*--pipe\.$"):
        cut_evenly(lookup("unet-tiny"), 11, recomputed=0)
