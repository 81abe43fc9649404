"""Elements that all ranks together move for a layer in each of colossal-ai's tensor modes, against its Table 1.

S is what the layer takes or gives, W its weight. Table 1 counts all ranks for 1D and 2D, but for 2.5D one square of
several, without the sum over them, and for 3D one plane of the cube.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import nn
from virtual_ranks import run_ranks

from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.layers.local import Local
from engine.layers.matmul import PLAIN
from engine.layers.registry import layer_of_grid
from engine.measure.recorder import Recorder
from engine.models.operations import FROM_STREAM, ONTO_STREAM, Linear, Sides
from engine.overlap.flags import Overlap
from engine.overlap.schedule import WeightSchedule
from engine.overlap.tasks import ONE_BY_ONE, Direction
from engine.overlap.weight import ShardedWeight
from engine.precision import Precision
from engine.tensor_mode import ALGORITHM_1, SPLIT, SQUARE, SQUARE_AS_PUBLISHED, TensorMode

ROWS, WIDE, NARROW = 144, 72, 36
FP64 = Precision.parse("fp64")
ELEMENT = 8


class Sizes(NamedTuple):
    """Elements of what a layer takes, of its weight and of what it gives."""

    x: int
    w: int
    y: int


def sent(kind: str, elements: float, ranks: int) -> float:
    """Elements that a rank sends of an input buffer, by a ring."""
    whole = {"all_reduce": 2 / ranks, "all_gather": 1.0}
    return (ranks - 1) * elements * whole.get(kind, 1 / ranks)


def moved(mode: TensorMode, grid: Grid, n: int, k: int, sides: Sides) -> float:
    """Elements that all ranks send in a step of one layer."""

    def step(comm: Comm) -> float:
        placement = next(Linear("layer", n, k, sides).placements("", mode))
        shard = nn.Parameter(torch.rand(placement.local_numel(grid), dtype=torch.float64))
        weight = ShardedWeight(placement, shard, placement.tile_shape(grid))
        comm.recorder = recorder = Recorder()
        schedule = WeightSchedule(comm, [weight], [], FP64, Overlap())
        local = Local(
            "layer", comm, schedule, {"weight": placement}, {"weight": shard}, {"weight": weight}, PLAIN, mode
        )
        layer = layer_of_grid(nn.Linear(k, n, bias=False, device="meta"), local)
        assert layer is not None
        side = sides[1]
        assert side is not None
        features, rows = mode[side].features, ROWS // grid.batch_split
        for axis in mode[side].rows:
            rows //= grid[axis]
        inputs = torch.rand(1, rows, k // grid[features], dtype=torch.float64, requires_grad=True)
        recorder.start_step("all")
        tasks = ONE_BY_ONE.order(0, 1, 1).known
        schedule.start_step(tasks)
        schedule.start_task(tasks[0])
        output = layer(inputs)
        schedule.start_task(next(task for task in tasks if task.direction is Direction.BACKWARD))
        output.backward(torch.rand_like(output))
        schedule.finish_step()
        recorder.end_step()
        tallies = recorder.total.tallies.items()
        return sum(sent(kind, tally.num_bytes / ELEMENT, grid[axis]) for (kind, axis), tally in tallies)  # type: ignore[index]

    return sum(run_ranks(grid, step))


Formula = Callable[[Sizes], float]


def two_d(q: int, depth: int, *, by_size: bool) -> Formula:
    """Panels of each square, and the sum of weight gradients over the squares."""

    def of(s: Sizes) -> float:
        panels = min(s.x, s.y) if by_size else s.x
        return 3 * (q - 1) * (panels + depth * s.w) + 2 * (depth - 1) * s.w

    return of


CASES: dict[str, tuple[TensorMode, Grid, Formula]] = {
    "1d, 4 ranks": (ALGORITHM_1, Grid(x=4), lambda s: 2 * 3 * s.x),
    "2d, 2x2": (SQUARE_AS_PUBLISHED, Grid(2, 2), two_d(2, 1, by_size=False)),
    "2d, 3x3": (SQUARE_AS_PUBLISHED, Grid(3, 3), two_d(3, 1, by_size=False)),
    "2d by size, 2x2": (SQUARE, Grid(2, 2), two_d(2, 1, by_size=True)),
    "2.5d, 2x2 twice along data": (SQUARE_AS_PUBLISHED, Grid(2, 2, 1, 2), two_d(2, 2, by_size=False)),
    "2.5d, 2x2 twice along z": (SQUARE_AS_PUBLISHED, Grid(2, 2, 2), two_d(2, 2, by_size=False)),
    "2.5d by size, 2x2 twice along z": (SQUARE, Grid(2, 2, 2), two_d(2, 2, by_size=True)),
    "3d, 2x2x2": (SPLIT, Grid(2, 2, 2), lambda s: 2 * (s.x + s.w + s.y)),
    "3d, 3x3x3": (SPLIT, Grid(3, 3, 3), lambda s: 2 * 2 * (s.x + s.w + s.y)),
    "4d, 2x2x2": (ALGORITHM_1, Grid(2, 2, 2), lambda s: 2 * (s.x + s.w + s.y)),
}


@pytest.mark.parametrize(("n", "k"), [(WIDE, NARROW), (NARROW, WIDE)], ids=["wider", "narrower"])
@pytest.mark.parametrize("case", CASES)
def test_a_layer_moves_as_many_elements_as_the_formula_says(case: str, n: int, k: int) -> None:
    mode, grid, formula = CASES[case]
    assert moved(mode, grid, n, k, FROM_STREAM) == pytest.approx(formula(Sizes(ROWS * k, n * k, ROWS * n)))


def test_a_transposed_layer_of_one_dimension_moves_what_it_gives() -> None:
    assert moved(ALGORITHM_1, Grid(x=4), WIDE, NARROW, ONTO_STREAM) == pytest.approx(2 * 3 * ROWS * WIDE)
