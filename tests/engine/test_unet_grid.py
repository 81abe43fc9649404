"""A U-Net trains on every grid as the serial one does, in float64, whole or in stages; and the test would notice if it
did not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from pipelines import make
from test_mutations import ONE_AXIS, Wrong
from test_parity import EAGER, GRIDS, TOLERANCE
from training import Case, Outcome, grid_id, train_parallel, train_serial, worst_error
from virtual_ranks import run_ranks

from engine.errors import UsageError
from engine.grid import Coords, Grid
from engine.models.image_operations import Conv2d
from engine.models.network import Carried, Network, Section
from engine.models.unet.config import UNetConfig
from engine.overlap.flags import ALL, Overlap

# Groups of three channels, which two, four and eight ranks of an axis leave whole, and three don't. A smaller base has
# groups of one, in which the biases before a norm change nothing.
GUIDED = UNetConfig("guided", 96, (1, 2), 1, (2,), head_channels=8, image=4, last_std=0.02)
IMPROVED = replace(
    GUIDED,
    name="improved",
    resampling="convolution",
    level_heads=24,
    channels_out=6,
    schedule="cosine",
    diffusion_steps=4000,
    rescales_steps=True,
    dropout=0.3,
)
PLAIN = Case(GUIDED, overlap=Overlap())
EVERYTHING = Case(GUIDED, sequences=16, micro_batches=2, checkpoint=1, overlap=EAGER)
CASES = {
    "plain": PLAIN,
    "everything": EVERYTHING,
    "improved-plain": replace(PLAIN, config=IMPROVED),
    "improved-everything": replace(EVERYTHING, config=IMPROVED, checkpoint=3),
}
ALWAYS = {Grid(2, 2, 2, 1), Grid(3, 2, 1, 2)}
OFTEN = 8
"""One call of so many is falsified, and one small grid of twice as many tried, every time; all of them weekly."""


@cache
def serial(case: Case) -> Outcome:
    return train_serial(replace(case, order=PLAIN.order))


def error(case: Case, grid: Grid) -> float:
    return worst_error(run_ranks(grid, lambda comm: train_parallel(case, comm))[0], serial(case))


def _spread() -> Iterator[Any]:
    """Every grid in every case: every time grids and cases take turns."""
    for number, (name, case) in enumerate(CASES.items()):
        for place, grid in enumerate(GRIDS):
            turn = place + number
            often = turn % (2 * OFTEN) == 0 if grid.size <= 4 else turn % len(CASES) == 0 and grid in ALWAYS
            marks = () if often else pytest.mark.weekly
            yield pytest.param(case, grid, marks=marks, id=f"{name}-{grid_id(grid)}")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("case", "grid"), list(_spread()))
def test_every_grid_trains_like_the_serial_model(case: Case, grid: Grid) -> None:
    assert error(case, grid) < TOLERANCE


STAGED = {"1f1b": Grid(1, 2, 2, 1, pipe=2), "message-driven": Grid(2, 1, 1, 1, pipe=2)}
"""Grids that are tried every time."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("schedule", "grid"),
    [
        pytest.param(name, grid, marks=() if STAGED.get(name) == grid else pytest.mark.weekly, id=f"{name}-{grid}")
        for name in ("gpipe", "1f1b", "interleaved", "zero-bubble", "message-driven", "message-driven-zb")
        for grid in STAGED.values()
    ],
)
def test_the_cut_of_a_pipeline_carries_the_skips_that_cross_it(schedule: str, grid: Grid) -> None:
    case = Case(GUIDED, sequences=16, micro_batches=4, order=make(schedule))
    assert error(case, grid) < TOLERANCE


def test_stages_that_recompute_carry_them_too() -> None:
    case = Case(IMPROVED, sequences=16, micro_batches=4, checkpoint=2, overlap=EAGER, order=make("1f1b"))
    assert error(case, Grid(1, 2, 1, 1, pipe=3)) < TOLERANCE


TINY = UNetConfig("tiny", 64, (1,), 1, (), head_channels=32, image=2, last_std=0.02)
RESAMPLING = replace(IMPROVED, attention=(), image=2)
"""Three ranks of y share statistics, and what two of x gather is the stream again."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("model", "grid", "turn"),
    [
        pytest.param(
            model,
            grid,
            turn,
            marks=() if model is TINY and turn == 0 else pytest.mark.weekly,
            id=f"{model.name}-{grid_id(grid)}-{turn}",
        )
        for model, grids in ((TINY, ONE_AXIS), (RESAMPLING, [Grid(x=2), Grid(y=3)]))
        for grid in grids
        for turn in range(OFTEN)
    ],
)
def test_one_wrong_collective_breaks_parity(model: UNetConfig, grid: Grid, turn: int) -> None:
    case, right = Case(model, sequences=4, steps=1, overlap=ALL), Wrong()
    assert right.error(case, grid) < TOLERANCE
    for number, kind in list(right.kinds.items())[turn::OFTEN]:
        for mutation in ("drop", "twice"):
            wrong = Wrong(number, mutation).error(case, grid)
            assert not wrong < TOLERANCE, f"{mutation} of call {number} of {len(right.kinds)}, {kind}"


@pytest.mark.parametrize(
    ("grid", "says"),
    [
        (Grid(x=5), "x=5, but 96.* 1, 2"),
        (Grid(y=5), "y=5, but 96.* 1, 2"),
        (Grid(x=32), "24 attention heads among x=32"),
        (Grid(x=8, y=8), "x=8 within y=8, but 96 .* 64: x times y .* 1, 2"),
    ],
)
def test_a_grid_that_does_not_divide_it_is_refused(grid: Grid, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        GUIDED.check(grid)


def boundaries(sections: Sequence[Section]) -> object:
    return Network(tuple(sections), GUIDED.network().entering).boundaries


def test_a_skip_whose_ends_disagree_or_that_has_one_alone_is_refused() -> None:
    """The last step takes what conv_in has left: 96 channels of 4 x 4 pixels."""
    network = GUIDED.network()
    *sections, last, after = network.sections
    assert last.takes == network.entering[0]
    for wrong in (Carried((192, 2, 2), 0, "channels"), Carried((96, 2, 2), 0, "channels")):
        with pytest.raises(ValueError, match=r"Block 9.* 96x4x4"):
            boundaries((*sections, replace(last, takes=wrong), after))
    with pytest.raises(ValueError, match=r"Block 5.*nothing"):
        boundaries([replace(section, leaves=False) for section in network.sections])
    with pytest.raises(ValueError, match="No block takes 96x4x4"):
        boundaries((*sections, replace(last, leaves=True), after))


@pytest.mark.parametrize("name", ["norm1", "conv1", "skip"])
@pytest.mark.parametrize("parts", [(), (144, 48)], ids=str)
def test_an_operation_that_splits_otherwise_what_its_block_takes_is_refused(name: str, parts: tuple[int, ...]) -> None:
    """The last step takes 96 channels of the stream and 96 others, and each rank of y a part of both."""
    *sections, last, after = GUIDED.network().sections
    of_name = f"residual.{name}"
    wrong = [replace(one, parts_in=parts) if getattr(one, "name", "") == of_name else one for one in last.operations]
    with pytest.raises(ValueError, match=r"block 9.*\(96, 96\)"):
        boundaries((*sections, replace(last, operations=tuple(wrong)), after))


def test_what_goes_from_block_to_block_is_what_the_table_says() -> None:
    """Down: conv_in's, a block's, half, a block's, each of which the next block leaves; up in the reverse order."""
    found = GUIDED.network().boundaries
    assert [len(boundary) - 2 for boundary in found] == [0, 1, 2, 3, 4, 4, 3, 2, 2, 1, 0]
    assert [boundary[0].shape[1] for boundary in found] == [4, 4, 2, 2, 2, 2, 2, 2, 4, 4, 4]
    assert all(boundary[1].shape == (4 * 96,) for boundary in found)


def test_only_a_skip_of_another_width_is_a_product_that_joins_the_next_one() -> None:
    blocks = [section for section in GUIDED.network().sections if section.recomputed]
    found = [[conv.joins for conv in block.of_kind(Conv2d)] for block in blocks]
    assert [joins for joins in found if any(joins)] == [[False, True, False]] * 5
    assert [any(joins) for joins in found] == [False, False, True, False, False, True, True, False, True, True]


def test_x_splits_a_skip_within_the_slices_of_y_so_that_each_rank_adds_to_its_own_channels() -> None:
    placements, grid = GUIDED.placements(), Grid(x=2, y=3)
    for name in ("weight", "bias"):
        placed = placements[f"blocks.2.residual.skip.{name}"]
        (rectangles,) = [placed.rectangles(grid, Coords(x=1))]
        rows = [range(rectangle.offsets[0], rectangle.offsets[0] + rectangle.sizes[0]) for rectangle in rectangles]
        assert rows == [range(32, 64), range(96, 128), range(160, 192)]
