"""Flags of overlap: on the command line, compared in an ablation, and how large their buckets are."""

import pytest

from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.choice import ModelChoice
from engine.overlap.flags import (
    ALL,
    HOP_S,
    LEAST_BYTES,
    Overlap,
    bucket_bytes,
    drop_useless,
    each_alone,
    ladder,
    why_useless,
)
from engine.training.checks import checked
from engine.training.config import TrainConfig


def test_flags_are_read_and_written_in_one_form() -> None:
    for text in ("none", "oar", "oar,ors,oag", "cache=28", "oar,ors,oag,cache=auto,data"):
        assert str(Overlap.parse(text)) == text
    assert Overlap.parse("data,oar") == Overlap.parse("oar,data")
    assert Overlap.parse("all") == ALL
    with pytest.raises(UsageError, match=r"--overlap .*'org'"):
        Overlap.parse("oar,org")
    with pytest.raises(UsageError, match=r"--prefetch-depth .* 0 "):
        Overlap(prefetch_depth=0)


def told(overlaps: object) -> list[str]:
    return [str(overlap) for overlap in overlaps]  # type: ignore[attr-defined]


def test_the_ladder_adds_one_flag_after_the_other_and_each_stands_alone() -> None:
    full = Overlap.parse("data,oar,cache=3,oag")
    assert told(ladder(full)) == ["none", "oar", "oar,oag", "oar,oag,cache=3", "oar,oag,cache=3,data"]
    assert told(each_alone(full)) == ["oar", "oag", "cache=3", "data"]


def test_each_flag_that_has_something_to_hide_on_the_grid_is_compared_once() -> None:
    every = [*ladder(ALL), *each_alone(ALL)]
    found = {
        grid: told(drop_useless(every, Grid.parse(grid), checkpointed=True))
        for grid in ("2x1x1x1", "1x2x1x1", "1x1x2x1", "1x1x1x2", "1x2x1x2", "1x1x1x1")
    }
    on_z = ["ors", "ors,oag", "ors,oag,cache=auto", "oag", "cache=auto"]
    assert found == {
        "2x1x1x1": ["none", "oar"],
        "1x2x1x1": ["none", "oar"],
        "1x1x2x1": ["none", *on_z],
        "1x1x1x2": ["none", "data"],
        "1x2x1x2": ["none", "oar", "oar,data", "data"],
        "1x1x1x1": ["none"],
    }
    assert told(drop_useless(every, Grid(z=2), checkpointed=False)) == ["none", "ors", "ors,oag", "oag"]


def test_a_variant_keeps_its_pace_and_is_named_by_what_it_really_does() -> None:
    asked = Overlap.parse("oar,data").at(Overlap(bucket_bytes=7))
    _, kept = drop_useless([asked, Overlap.parse("none")], Grid(data=2), checkpointed=True)
    assert str(kept) == "data"
    assert kept.bucket_bytes == 7


def test_a_flag_that_is_left_out_says_why() -> None:
    grid = Grid(2, 1, 2, 1)
    assert "2x1x2x1" in (why_useless("data", grid, checkpointed=True) or "")
    assert "without --checkpoint-activations" in (why_useless("cache", grid, checkpointed=False) or "")
    assert [why_useless(flag, grid, checkpointed=True) for flag in ("oar", "ors", "oag", "cache")] == [None] * 4


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_few_ranks_take_the_least(ranks: int) -> None:
    assert bucket_bytes(ranks) == pytest.approx(LEAST_BYTES)
    assert bucket_bytes(ranks, link_bytes_per_s=125e6) == pytest.approx(LEAST_BYTES)


@pytest.mark.parametrize(("link", "devices"), [(100e9, 8), (25e9, 1), (200e9, 4)])
def test_of_a_ring_over_many_ranks_a_fifth_is_latency(link: float, devices: int) -> None:
    ranks, share = 2048, link / devices
    num_bytes = bucket_bytes(ranks, link, devices)
    latency, transfer = HOP_S, num_bytes / (ranks * share)
    assert latency / (latency + transfer) == pytest.approx(0.2)


def _bucket(overlap: Overlap, data: int) -> float:
    config = TrainConfig(
        model=ModelChoice(model="gpt-test"),
        batch=Batch(data),
        data="synthetic",
        grid=Grid(data=data),
        overlap=overlap,
        link_bytes_per_s=100e9,
        devices_per_node=8,
    )
    found: float = checked(config, data).as_options()["bucket_bytes"]
    return found


def test_a_run_takes_and_records_what_suits_its_ranks_and_links_unless_it_is_told() -> None:
    assert _bucket(ALL, 1024) == pytest.approx(bucket_bytes(1024, 100e9, 8))
    assert _bucket(ALL, 1024) > LEAST_BYTES
    assert _bucket(Overlap(data=True, bucket_bytes=1e6), 1024) == pytest.approx(1e6)
