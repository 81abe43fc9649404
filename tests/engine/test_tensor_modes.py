"""Tensor modes train as the serial model does, in float64, whichever grid they lie on."""

import doctest
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from test_parity import BERT, EAGER, LLAMA, SMALL, TOLERANCE, VIT, as_on_a_gpu  # noqa: F401
from training import Case, Outcome, grid_id, train_parallel, train_serial, worst_error
from virtual_ranks import run_ranks

from engine import tensor_mode
from engine.comm.funnel import Comm
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.overlap.flags import Overlap
from engine.tensor_mode import SPLIT, SPLIT_HEADS, SQUARE, SQUARE_AS_PUBLISHED, Side, TensorMode

NEOX = replace(SMALL, heads=12, rotary=2, parallel_residual=True, ffn=72)
NETWORKS: dict[str, Architecture] = {
    "gpt": replace(SMALL, tied=True, dropout=0.2),
    "llama": replace(LLAMA, tied=True, qkv_bias=True, qk_norm=True),
    "neox": replace(NEOX, dropout=0.2),
    "bert": replace(BERT, dropout=0.2),
    "vit": replace(VIT, dropout=0.2),
}
GRIDS = [
    Grid(),
    Grid(x=2),
    Grid(x=4),
    Grid(y=2),
    Grid(y=4),
    Grid(2, 2),
    Grid(1, 4, 2),
    Grid(2, 2, 2),
    Grid(1, 2, 1, 2),
    Grid(3, 3),
    Grid(3, 2, 2),
    Grid(3, 3, 3),
]
HEADS = 12
"""Divisor of all heads."""
MODES = {"rows": SPLIT, "heads": SPLIT_HEADS, "again": replace(SPLIT, gathers_again=True)}


@cache
def serial(case: Case) -> Outcome:
    return train_serial(replace(case, mode=Case.mode))


def case_of(config: Architecture, grid: Grid, mode: TensorMode, *, everything: bool) -> Case:
    """Make a case whose micro-batches all ranks of a plane can share by rows."""
    sequences = 2 * grid.batch_split * 12
    if not everything:
        return Case(config, sequences=sequences, mode=mode, overlap=Overlap())
    return Case(config, sequences=sequences, micro_batches=2, checkpoint=1, overlap=EAGER, mode=mode)


SQUARES = [Grid(2, 2), Grid(2, 2, 2), Grid(2, 2, 1, 2), Grid(3, 3), Grid(3, 3, 3)]


def _spread(modes: Mapping[str, TensorMode], grids: Sequence[Grid]) -> Iterator[Any]:
    """Yield every network in every mode on every grid: a seventh of them every time."""
    number = 0
    for mode_name, mode in modes.items():
        for name, config in NETWORKS.items():
            for grid in grids:
                if mode.by_heads and HEADS % grid.plane:
                    continue
                number += 1
                often = () if number % 7 == 0 and grid.size < 27 else pytest.mark.weekly
                case = case_of(config, grid, mode, everything=number % 2 == 0)
                yield pytest.param(case, grid, marks=often, id=f"{mode_name}-{name}-{grid_id(grid)}")


OF_SQUARES = {mode.name: mode for mode in (SQUARE, SQUARE_AS_PUBLISHED)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("case", "grid"), [*_spread(MODES, GRIDS), *_spread(OF_SQUARES, SQUARES)])
def test_every_mode_trains_like_the_serial_model(case: Case, grid: Grid) -> None:
    ours = run_ranks(grid, lambda comm: train_parallel(case, comm))[0]
    assert worst_error(ours, serial(case)) < TOLERANCE


@pytest.mark.parametrize(
    ("grid", "sequences", "numbers"),
    [(Grid(y=4), 6, r"6 tokens, .* 9 tokens of the 6 samples"), (Grid(x=5), 6, "5 ranks share the 36 tokens")],
    ids=["part of a sample", "rows"],
)
def test_rows_that_ranks_cannot_share_are_refused(grid: Grid, sequences: int, numbers: str) -> None:
    case = Case(NETWORKS["gpt"], sequences=sequences, mode=SPLIT)

    def refused(comm: Comm) -> bool:
        with pytest.raises(UsageError, match=numbers):
            train_parallel(case, comm)
        return True

    assert all(run_ranks(grid, refused))


def test_a_mode_tells_parts_and_repeats() -> None:
    assert doctest.testmod(tensor_mode).failed == 0
    grid = Grid(x=2, y=3)
    sides = [(mode.parts(side, grid), mode.repeats(side, grid)) for mode in (SPLIT, SPLIT.whole) for side in Side]
    assert sides == [(6, 1), (6, 1), (3, 2), (2, 3)]


@pytest.mark.sampled(4)
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("grid", [Grid(1, 2), Grid(2, 2, 2)], ids=grid_id)
@pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())
@pytest.mark.parametrize("name", NETWORKS)
def test_what_gpus_compile_trains_so_in_every_mode(name: str, mode: TensorMode, grid: Grid) -> None:
    case = case_of(NETWORKS[name], grid, mode, everything=True)
    ours = run_ranks(grid, lambda comm: train_parallel(case, comm))[0]
    assert worst_error(ours, serial(case)) < TOLERANCE
