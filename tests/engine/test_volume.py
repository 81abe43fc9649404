"""The recorder's bytes and calls equal the closed form of Algorithm 1 plus everything around it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from closed_form import Volume, closed_form
from test_parity import FAMILIES, LLAMA, SMALL
from test_unet_grid import GUIDED, IMPROVED
from training import Case, grid_id, start, step_parallel
from unet_volume import unet_volume
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.unet.config import UNetConfig
from engine.overlap.flags import ALL
from engine.tensor_mode import SPLIT, SPLIT_HEADS, SQUARE, SQUARE_AS_PUBLISHED, TensorMode


def measured(case: Case, grid: Grid) -> list[Volume]:
    """Count each rank's step."""

    def one_step(comm: Comm) -> Volume:
        model = start(case, comm)
        found = Volume()
        with counting(comm, found):
            step_parallel(case, model, 0)
        return found

    return run_ranks(grid, one_step, record=True)


@contextmanager
def counting(comm: Comm, found: Volume) -> Iterator[None]:
    """Count in `found` what is sent inside."""
    assert comm.recorder is not None
    comm.recorder.clear()
    comm.recorder.start_step("all")
    yield
    comm.recorder.end_step()
    for key, tally in comm.recorder.total.tallies.items():
        found.calls[key], found.num_bytes[key] = tally.calls, tally.num_bytes


GRIDS = [Grid(2, 1, 1, 1), Grid(1, 2, 1, 1), Grid(1, 1, 2, 1), Grid(1, 1, 1, 2), Grid(2, 2, 2, 2), Grid(3, 2, 1, 2)]
UNEVEN = [Grid(z=3), Grid(z=5), Grid(2, 1, 6, 1), Grid(1, 2, 7, 1)]
"""Grids whose z divides few tiles."""


AGAIN = replace(SPLIT, gathers_again=True)


def _spread() -> Iterator[Any]:
    """Every family on every grid in both precisions, with and without checkpoints: of the large grids half, in which
    these take turns, every time.
    """
    for place, grid in enumerate(GRIDS + UNEVEN):
        for number, (name, model) in enumerate(FAMILIES.items()):
            for checkpoint, precision in product((False, True), ("fp64", "bf16")):
                turn = place + number + checkpoint + (precision == "bf16")
                often = () if grid.size == 2 or turn % 2 == 0 else pytest.mark.weekly
                words = [grid_id(grid), "checkpointed" if checkpoint else "plain", precision, name]
                yield pytest.param(grid, checkpoint, precision, model, marks=often, id="-".join(words))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("grid", "checkpoint", "precision", "model"), list(_spread()))
def test_recorded_bytes_and_calls_equal_the_closed_form(
    grid: Grid, checkpoint: bool, precision: str, model: Architecture
) -> None:
    sequences = 16 if 16 % grid.batch_split == 0 else 4 * grid.batch_split
    case = Case(model, sequences=sequences, micro_batches=2, checkpoint=checkpoint, precision=precision)
    batch = Batch(sequences, sequences // grid.batch_split // 2)
    expected = closed_form(model, batch, grid, precision=precision, checkpoint=checkpoint)
    for rank in measured(case, grid):
        assert rank.calls == expected.calls
        assert rank.num_bytes == expected.num_bytes


OF_MODES = [
    *product((SPLIT, SPLIT_HEADS, AGAIN), (Grid(x=2), Grid(y=2), Grid(2, 2, 2, 2), Grid(3, 2, 1, 2))),
    *product((SQUARE, SQUARE_AS_PUBLISHED), (Grid(2, 2), Grid(2, 2, 2), Grid(3, 3))),
]


@pytest.mark.sampled(7)
@pytest.mark.parametrize("checkpoint", [False, True], ids=["plain", "checkpointed"])
@pytest.mark.parametrize(("mode", "grid"), OF_MODES, ids=lambda of: of.name if isinstance(of, TensorMode) else str(of))
@pytest.mark.parametrize("model", [replace(SMALL, heads=12), LLAMA], ids=["gpt", "llama"])
def test_what_a_tensor_mode_sends_is_what_its_closed_form_says(
    model: Architecture, mode: TensorMode, grid: Grid, checkpoint: bool
) -> None:
    sequences = 24 * grid.batch_split
    case = Case(model, sequences=sequences, micro_batches=2, checkpoint=checkpoint, mode=mode)
    expected = closed_form(model, Batch(sequences, 12), grid, precision="fp64", checkpoint=checkpoint, mode=mode)
    for rank in measured(case, grid):
        assert rank.calls == expected.calls
        assert rank.num_bytes == expected.num_bytes


def _unets() -> Iterator[Any]:
    """Both readings on every grid but that of three ranks along x, in both precisions, with and without checkpoints: of
    these a twentieth every time.
    """
    grids = [grid for grid in GRIDS if grid.x != 3] + [Grid(2, 2, 2, 1)]
    every = product(grids, (False, True), ("fp64", "bf16"), (GUIDED, IMPROVED))
    for number, (grid, checkpoint, precision, model) in enumerate(every):
        words = [grid_id(grid), "checkpointed" if checkpoint else "plain", precision, model.name]
        marks = () if number % 23 == 0 else pytest.mark.weekly
        yield pytest.param(grid, checkpoint, precision, model, marks=marks, id="-".join(words))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("grid", "checkpoint", "precision", "model"), list(_unets()))
def test_recorded_bytes_and_calls_of_a_u_net_equal_the_closed_form(
    grid: Grid, checkpoint: bool, precision: str, model: UNetConfig
) -> None:
    overlap = replace(ALL, data=False)
    case = Case(model, sequences=16, micro_batches=2, checkpoint=checkpoint, precision=precision, overlap=overlap)
    batch = Batch(16, 16 // grid.batch_split // 2)
    expected = unet_volume(model, batch, grid, precision=precision, checkpoint=checkpoint)
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
