"""The parity tests can fail: each single collective of a step, dropped or done twice, is noticed.

With only one axis of two ranks, every collective of a step belongs to that axis and is falsified in turn.
"""

import pytest
from test_parity import SMALL, TOLERANCE
from training import Case, grid_id, start, step_parallel, train_parallel, train_serial, worst_error
from virtual_ranks import run_ranks

from engine.comm.funnel import Comm, Kind
from engine.grid import Axis, Grid

CASE = Case(SMALL, sequences=4, steps=1)


def _calls_of_a_step(grid: Grid) -> list[tuple[Kind, Axis]]:
    """Every collective of one training step of rank 0, in order."""
    seen: list[tuple[Kind, Axis]] = []

    def note(kind: Kind, axis: Axis, number: int) -> None:
        if number > len(seen):
            seen.append((kind, axis))

    def one_step(comm: Comm) -> None:
        step_parallel(CASE, start(CASE, comm), 0)

    run_ranks(grid, one_step, mutate=note)
    return seen


@pytest.mark.parametrize("mutation", ["drop", "twice"])
@pytest.mark.parametrize("grid", [Grid(2, 1, 1, 1), Grid(1, 2, 1, 1), Grid(1, 1, 2, 1), Grid(1, 1, 1, 2)], ids=grid_id)
def test_one_wrong_collective_breaks_parity(grid: Grid, mutation: str) -> None:
    reference = train_serial(CASE)
    calls = _calls_of_a_step(grid)
    assert calls
    for wrong, (kind, _) in enumerate(calls, start=1):
        if (kind is Kind.ALL_GATHER and mutation == "drop") or (kind is Kind.MAX_REDUCE and mutation == "twice"):
            continue  # nothing to drop; a softmax does not depend on a shift that all ranks share

        def mutate(kind: Kind, axis: Axis, number: int, wrong: int = wrong) -> str | None:
            return mutation if number == wrong else None

        ours = run_ranks(grid, lambda comm: train_parallel(CASE, comm), mutate=mutate)[0]
        assert not worst_error(ours, reference) < TOLERANCE, f"{mutation} of call {wrong}, {kind}, went unnoticed"
