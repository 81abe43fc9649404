"""What a U-Net's step sends costs what the planner prices: par4d's communication model with channels for features."""

from collections import defaultdict
from dataclasses import replace

import pytest
from dry_plans import dry_plan

from engine.batch import Batch
from engine.comm.collective import Kind
from engine.grid import CUTTING_STAGES, SPLITTING_FEATURES, Axis, Grid
from engine.models.unet.config import UNetConfig
from engine.planning.equations import (
    MESSAGES,
    MOVED,
    Costs,
    all_gather_z,
    all_reduce_data,
    all_reduce_x,
    all_reduce_y,
    reduce_scatter_z,
)
from engine.planning.grids import factorisations
from engine.simulator.collectives import Link, moved_bytes
from engine.tracing.step import trace

GUIDED = UNetConfig("guided", 64, multipliers=(1, 1), depth=1, attention=(4,), head_channels=16, image=8)
"""No group of channels straddles ranks, whose statistics the planner doesn't price."""
IMPROVED = replace(GUIDED, name="improved", level_heads=4, resampling="convolution", channels_out=6)
A_BYTE_A_SECOND = dict.fromkeys(Axis, Link(1.0))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("number", "grid"), [*enumerate(factorisations(4))], ids=str)
def test_as_run_it_moves_what_the_engine_sends(number: int, grid: Grid) -> None:
    model, checkpoint, batch = (GUIDED, IMPROVED)[number % 2], number // 2 % 2, Batch(8, 1)
    training, _ = dry_plan(model, grid, batch, checkpoint=checkpoint, precision="fp32")
    sent: dict[tuple[Kind, Axis], float] = defaultdict(float)
    sent |= {(Kind(kind), Axis(axis)): size for (kind, axis), (_, size) in trace(training, grid).sent().items()}
    replicated = 4 * sum(p.local_numel(grid) for p in model.placements().values() if not p.sharded)
    of_norm, of_loss = 4, 8
    for axis in SPLITTING_FEATURES:
        sent[Kind.ALL_REDUCE, axis] -= of_norm
    sent[Kind.ALL_REDUCE, Axis.DATA] -= replicated + of_loss

    def moved(kind: Kind, axis: Axis) -> float:
        return moved_bytes(kind, sent[kind, axis], grid[axis]) if grid[axis] > 1 else 0.0

    priced: dict[tuple[str, Axis], float] = defaultdict(float)
    priced |= Costs(training).as_run(grid, A_BYTE_A_SECOND, batch.micro or 0)
    assert priced[all_gather_z.__name__, Axis.Z] == pytest.approx(moved(Kind.ALL_GATHER, Axis.Z))
    assert priced[reduce_scatter_z.__name__, Axis.Z] == pytest.approx(moved(Kind.REDUCE_SCATTER, Axis.Z))
    assert priced[all_reduce_data.__name__, Axis.DATA] == pytest.approx(moved(Kind.ALL_REDUCE, Axis.DATA))
    for axis in SPLITTING_FEATURES:
        sums = sum(priced[equation.__name__, axis] for equation in (all_reduce_y, all_reduce_x))
        scattered = moved(Kind.REDUCE_SCATTER, axis) / (1 + checkpoint)  # of skips, whose gradients are gathered
        assert sums == pytest.approx(moved(Kind.ALL_REDUCE, axis) + (2 + checkpoint) * scattered)
        assert priced[MOVED, axis] == pytest.approx(moved(Kind.ALL_GATHER, axis) - scattered)


def test_a_stage_sends_what_crosses_its_boundary_each_way_in_every_micro_batch() -> None:
    """Stages have 8 and 2 blocks: between them are the stream, the embedding and what two blocks have left."""
    training, _ = dry_plan(GUIDED, Grid(), Batch(8, 2))
    grid = Grid(x=2, y=2, pipe=2)
    stages = training.cut(grid)
    crossing = stages.sent(GUIDED.network(), grid)[1]
    entering = GUIDED.network().boundaries[stages.in_order[1].start]
    elements = [one.features * one.shape[-1] ** (len(one.shape) - 1) for one in entering]
    assert crossing == sum(elements) / (grid[Axis.X] * grid.y)
    priced = Costs(training).as_run(grid, A_BYTE_A_SECOND, 2)
    assert priced[MESSAGES, CUTTING_STAGES] == 2 * 4 * 2 * 2 * crossing
