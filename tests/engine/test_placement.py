"""Placements: every element of a serial tensor is stored where it should be, and starts the same on every grid."""

from dataclasses import replace
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_ranks import factorisations

from engine.grid import SPLITTING_FEATURES, Axis, Coords, Grid
from engine.parallel.initial import initial
from engine.placement import Constant, Gaussian, Placement

GRIDS = [*factorisations(), Grid(2, 2, 2, 2), Grid(3, 2, 1, 2), Grid(1, 1, 5, 1), Grid(2, 3, 5, 1)]
PLACEMENTS = [
    Placement("weight", (24 * 5, 24 * 5), SPLITTING_FEATURES, True, Gaussian(1.0)),
    Placement("transposed", (24 * 5, 24), SPLITTING_FEATURES[::-1], True, Gaussian(1.0)),
    Placement("by columns", (24 * 5, 24 * 3), SPLITTING_FEATURES, True, Gaussian(1.0), column_major=True),
    Placement("qkv", (3 * 24, 24 * 5), SPLITTING_FEATURES, True, Gaussian(1.0), parts={0: (24, 24, 24)}),
    Placement("qkv.bias", (3 * 24,), SPLITTING_FEATURES[:1], False, Gaussian(1.0), parts={0: (24, 24, 24)}),
    Placement("uneven", (48 + 24 + 24, 24 * 5), SPLITTING_FEATURES, True, Gaussian(1.0), parts={0: (48, 24, 24)}),
    Placement("conv", (24, 24 * 5, 3, 3), (*SPLITTING_FEATURES, None, None), True, Gaussian(1.0)),
    Placement("positions", (7, 24), (None, SPLITTING_FEATURES[1]), False, Gaussian(1.0)),
]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda p: p.name)
def test_initial_shards_are_parts_of_one_global_tensor(placement: Placement, grid: Grid) -> None:
    serial = initial(replace(placement, column_major=False), Grid(), Coords(0, 0, 0, 0), seed=3).view(placement.shape)
    for rank in range(grid.size):
        local = initial(placement, grid, grid.coords(rank), seed=3)
        for r in placement.rectangles(grid, grid.coords(rank)):
            region = serial[r.region]
            assert torch.equal(r.view(local), region)


@st.composite
def placements_on_grids(draw: st.DrawFn) -> tuple[Placement, Grid]:
    """Draw tensors of 0 to 4 dims, split over any axis or none, in parts of unequal size, on grids that may divide
    them.
    """
    grid = Grid(draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(st.integers(1, 7)))
    free = draw(st.permutations([Axis.X, Axis.Y, None, None]))
    split = tuple(free[: draw(st.integers(0, 4))])
    units = draw(st.sampled_from([None, 1, 3, 5]))
    parts = {
        dim: tuple(
            number * (units if units and axis is Axis.X else 1)
            for number in draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
        )
        for dim, axis in enumerate(split)
    }
    shape = tuple(sum(sizes) for sizes in parts.values())
    heads = {dim: units for dim, axis in enumerate(split) if units and axis is Axis.X}
    by_columns = len(shape) == 2 and draw(st.booleans())
    sharded = draw(st.booleans())
    return Placement("p", shape, split, sharded, Constant(1.0), parts, by_columns, units=heads), grid


@settings(deadline=None, max_examples=300)
@given(placements_on_grids(), st.integers(0, 99))
def test_the_rectangles_of_all_ranks_tile_the_serial_tensor(case: tuple[Placement, Grid], seed: int) -> None:
    """Each element as often as it is replicated, and a rank's elements once, but for zeros between and behind them."""
    placement, grid = case
    times = torch.zeros(placement.shape)
    serial = torch.arange(prod(placement.shape)).view(placement.shape)
    for rank in range(grid.size):
        rectangles = placement.rectangles(grid, grid.coords(rank))
        local = torch.full((placement.local_numel(grid),), -1)
        drawn = initial(placement, grid, grid.coords(rank), seed)
        for rectangle in rectangles:
            times[rectangle.region] += 1
            assert (rectangle.view(local) == -1).all(), "two rectangles share an element of a rank"
            rectangle.view(local).copy_(serial[rectangle.region])
        assert torch.equal(local >= 0, drawn != 0), "an element of a rank is of no rectangle, and not 0"
        assert [r.start for r in rectangles] == sorted(r.start for r in rectangles)
    assert torch.equal(times, torch.full(placement.shape, float(placement.replicas(grid))))


@pytest.mark.parametrize(
    ("placement", "grid", "tile", "local"),
    [
        (Placement("w", (6, 4), SPLITTING_FEATURES, True, Gaussian(1.0)), Grid(x=4), (2, 4), 8),
        (Placement("w", (6, 4), SPLITTING_FEATURES, True, Gaussian(1.0), {0: (4, 2)}), Grid(x=3), (3, 4), 12),
        (
            Placement("w", (12, 4), SPLITTING_FEATURES, True, Gaussian(1.0), {0: (6, 6)}, units={0: 3}),
            Grid(x=2),
            (8, 4),
            32,
        ),
        (Placement("w", (6, 5), SPLITTING_FEATURES, True, Gaussian(1.0)), Grid(z=5), (6, 5), 6),
        (Placement("w", (60, 5), SPLITTING_FEATURES, True, Gaussian(1.0)), Grid(z=7), (60, 5), 48),
    ],
)
def test_tiles_and_shards_are_of_one_size_also_where_the_grid_does_not_divide_a_tensor(
    placement: Placement, grid: Grid, tile: tuple[int, ...], local: int
) -> None:
    assert (placement.tile_shape(grid), placement.local_numel(grid)) == (tile, local)


def test_a_placement_whose_split_or_parts_do_not_match_its_shape_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"2 dims, .* 1"):
        Placement("w", (6, 4), SPLITTING_FEATURES[:1], True, Gaussian(1.0))
    with pytest.raises(ValueError, match=r"dim 0 .* 6"):
        Placement("w", (6, 4), SPLITTING_FEATURES, True, Gaussian(1.0), {0: (4, 1)})


def test_of_five_heads_one_of_two_ranks_has_three() -> None:
    qkv = Placement("qkv", (3 * 10, 4), SPLITTING_FEATURES, True, Gaussian(1.0), parts={0: (10, 10, 10)}, units={0: 5})
    first, second = (qkv.rectangles(Grid(x=2), Coords(rank, 0, 0, 0)) for rank in range(2))
    assert [(r.offsets[0], r.sizes[0], r.start) for r in first] == [(0, 6, 0), (10, 6, 24), (20, 6, 48)]
    assert [(r.offsets[0], r.sizes[0], r.start) for r in second] == [(6, 4, 0), (16, 4, 24), (26, 4, 48)]


def test_heads_of_a_fused_projection_stay_together() -> None:
    qkv = Placement("qkv", (3 * 8, 4), SPLITTING_FEATURES, True, Gaussian(1.0), parts={0: (8, 8, 8)})
    second = qkv.rectangles(Grid(x=2), Coords(1, 0, 0, 0))
    assert [(r.offsets, r.sizes) for r in second] == [((4, 0), (4, 4)), ((12, 0), (4, 4)), ((20, 0), (4, 4))]


def test_key_and_value_heads_may_be_fewer_than_query_heads() -> None:
    fused = Placement("qkv", (8 + 4 + 4, 4), SPLITTING_FEATURES, True, Gaussian(1.0), parts={0: (8, 4, 4)})
    second = fused.rectangles(Grid(x=2), Coords(1, 0, 0, 0))
    assert [(r.offsets, r.sizes) for r in second] == [((4, 0), (4, 4)), ((10, 0), (2, 4)), ((14, 0), (2, 4))]
