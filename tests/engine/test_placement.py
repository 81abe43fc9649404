"""Placements: every element of a serial tensor is stored where it should be, and starts the same on every grid."""

import pytest
import torch
from virtual_ranks import factorisations

from engine.grid import Coords, Grid
from engine.models.gpt.config import GPTConfig
from engine.parallel.initial import initial
from engine.placement import NORMAL, TRANSPOSED, Gaussian, Placement

GRIDS = [*factorisations(), Grid(2, 2, 2, 2), Grid(3, 2, 1, 2), Grid(1, 1, 5, 1), Grid(2, 3, 5, 1)]
PLACEMENTS = [
    Placement("weight", (24 * 5, 24 * 5), NORMAL, True, Gaussian(1.0)),
    Placement("transposed", (24 * 5, 24), TRANSPOSED, True, Gaussian(1.0)),
    Placement("qkv", (3 * 24, 24 * 5), NORMAL, True, Gaussian(1.0), parts={0: (24, 24, 24)}),
    Placement("qkv.bias", (3 * 24,), NORMAL[:1], False, Gaussian(1.0), parts={0: (24, 24, 24)}),
    Placement("positions", (7, 24), (None, NORMAL[1]), False, Gaussian(1.0)),
]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda p: p.name)
def test_shards_cover_the_serial_tensor_as_often_as_it_is_replicated(placement: Placement, grid: Grid) -> None:
    times = torch.zeros(placement.shape)
    for rank in range(grid.x * grid.y * grid.z):
        rectangles = placement.rectangles(grid, grid.coords(rank))
        assert sum(r.numel for r in rectangles) == placement.local_numel(grid)
        assert len(rectangles) <= 3 * len(placement.parts.get(0, (0,)))
        for r in rectangles:
            times[r.region] += 1
    assert torch.equal(times, torch.full(placement.shape, float(placement.replicas(grid))))


@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("placement", PLACEMENTS, ids=lambda p: p.name)
def test_initial_shards_are_parts_of_one_global_tensor(placement: Placement, grid: Grid) -> None:
    serial = initial(placement, Grid(), Coords(0, 0, 0, 0), seed=3).view(placement.shape)
    for rank in range(grid.size):
        local = initial(placement, grid, grid.coords(rank), seed=3)
        for r in placement.rectangles(grid, grid.coords(rank)):
            region = serial[r.region]
            assert torch.equal(r.of(local), region)


def test_initial_values_depend_on_seed_name_and_row_and_have_the_asked_spread() -> None:
    big = Placement("a", (500, 200), NORMAL, True, Gaussian(0.02))
    origin = Coords(0, 0, 0, 0)
    first = initial(big, Grid(), origin, 0)
    assert first.std().item() == pytest.approx(0.02, rel=0.02)
    assert first.mean().abs().item() < 3e-4
    rows = first.view(500, 200)
    assert rows.unique(dim=0).shape[0] == 500
    assert not torch.equal(first, initial(big, Grid(), origin, 1))
    renamed = Placement("b", (500, 200), NORMAL, True, Gaussian(0.02))
    assert not torch.equal(first, initial(renamed, Grid(), origin, 0))


def test_heads_of_a_fused_projection_stay_together() -> None:
    qkv = Placement("qkv", (3 * 8, 4), NORMAL, True, Gaussian(1.0), parts={0: (8, 8, 8)})
    second = qkv.rectangles(Grid(x=2), Coords(1, 0, 0, 0))
    assert [(r.offsets, r.sizes) for r in second] == [((4, 0), (4, 4)), ((12, 0), (4, 4)), ((20, 0), (4, 4))]


def test_no_rank_stores_more_than_its_share_of_a_weight() -> None:
    config = GPTConfig("c", layers=1, hidden=64, heads=8, vocabulary=128, sequence=16)
    for grid in (Grid(2, 2, 2, 1), Grid(1, 1, 8, 1), Grid(8, 1, 1, 1)):
        for placement in config.placements().values():
            if placement.sharded:
                whole = placement.shape[0] * placement.shape[1]
                assert placement.local_numel(grid) == whole // (grid.x * grid.y * grid.z)
