"""The recorder's bytes and calls equal the closed form of Algorithm 1 plus everything around it."""

from collections import Counter
from dataclasses import replace

import pytest
from closed_form import Volume, closed_form
from test_parity import FAMILIES, SMALL
from training import Case, grid_id, start, step_parallel
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.models.architecture import Architecture


def measured(case: Case, grid: Grid, steps: int = 1) -> list[Volume]:
    """Of every rank in the last of so many steps."""

    def one_step(comm: Comm) -> Volume:
        assert comm.recorder is not None
        model = start(case, comm)
        for step in range(steps):
            comm.recorder.clear()
            comm.recorder.start_step("all")
            step_parallel(case, model, step)
        comm.recorder.end_step()
        tallies = comm.recorder.total.tallies.items()
        return Volume(Counter({key: t.calls for key, t in tallies}), Counter({key: t.num_bytes for key, t in tallies}))

    return run_ranks(grid, one_step, record=True)


@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES.keys())
@pytest.mark.parametrize("precision", ["fp64", "bf16"])
@pytest.mark.parametrize("checkpoint", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize(
    "grid",
    [Grid(2, 1, 1, 1), Grid(1, 2, 1, 1), Grid(1, 1, 2, 1), Grid(1, 1, 1, 2), Grid(2, 2, 2, 2), Grid(3, 2, 1, 2)],
    ids=grid_id,
)
def test_recorded_bytes_and_calls_equal_the_closed_form(
    grid: Grid, checkpoint: bool, precision: str, model: Architecture
) -> None:
    case = Case(model, sequences=16, micro_batches=2, checkpoint=checkpoint, precision=precision)
    batch = Batch(16, 16 // grid.batch_split // 2)
    expected = closed_form(model, batch, grid, precision=precision, checkpoint=checkpoint)
    for rank in measured(case, grid):
        assert rank.calls == expected.calls
        assert rank.num_bytes == expected.num_bytes


def test_a_layer_is_gathered_twice_with_checkpointing_and_once_without() -> None:
    """Two, not three: what the recomputation gathers is kept for the block's backward. A tied head adds one gather."""
    layers, linear = SMALL.layers, 4
    for tied in (False, True):
        for checkpoint, per_layer in ((False, 1), (True, 2)):
            case = Case(replace(SMALL, tied=tied), sequences=2, checkpoint=checkpoint)
            calls = measured(case, Grid(1, 1, 2, 1))[0].calls
            assert calls["all_gather", "z"] == layers * linear * per_layer + 2
            assert calls["reduce_scatter", "z"] == layers * linear + 2
