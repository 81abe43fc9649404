"""The same equality with real processes, where asynchrony is real."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from real_ranks import run_processes
from test_parity import CASES, SMALL, TOLERANCE
from training import Case, Outcome, grid_id, train_parallel, train_serial, worst_error

from engine.comm.funnel import Comm
from engine.grid import Grid


def _train(comm: Comm, case: Case) -> Outcome:
    return train_parallel(case, comm)


def _spread() -> Iterator[Any]:
    """Both networks on every grid: half of them every time."""
    grids = [Grid(2, 1, 1, 1), Grid(1, 1, 2, 2), Grid(2, 2, 2, 1), Grid(1, 2, 2, 2)]
    for turn in product(range(2), range(len(grids))):
        name, grid = ["everything", "llama-everything"][turn[0]], grids[turn[1]]
        often = () if sum(turn) % 2 == 0 else pytest.mark.weekly
        yield pytest.param(name, grid, marks=often, id=f"{name}-{grid_id(grid)}")


@pytest.mark.parametrize(("name", "grid"), list(_spread()))
def test_processes_train_like_the_serial_model(name: str, grid: Grid) -> None:
    case = CASES[name]
    assert worst_error(run_processes(grid, _train, case)[0], train_serial(case)) < TOLERANCE


def _largest_difference(ours: Outcome, reference: Outcome) -> float:
    return max(abs(a / b - 1) for a, b in zip(ours.losses, reference.losses, strict=True))


def test_fifty_steps_in_float32_keep_the_loss_curve() -> None:
    """Rounding grows along a steep descent; a learning rate, and so a gradient, off by 0.1 % is ten bounds away."""
    bound = 2e-4
    case = Case(replace(SMALL, dropout=0.1), steps=50, precision="fp32", learning_rate=0.1, batches=1)
    serial = train_serial(case)
    assert serial.losses[-1] < 0.5 * serial.losses[0]
    assert _largest_difference(run_processes(Grid(2, 1, 2, 1), _train, case)[0], serial) < bound
    assert _largest_difference(train_serial(replace(case, learning_rate=0.1001)), serial) > 10 * bound
