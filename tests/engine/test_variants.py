"""Which overlaps an ablation compares."""

from engine.grid import Grid
from engine.overlap.flags import ALL, Overlap, drop_useless, each_alone, ladder, why_useless


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
