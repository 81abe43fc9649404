"""BERT and the vision transformer of drawn shapes, on drawn grids in drawn ways, train as their serial models do."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from pipelines import make
from training import Case, train_parallel, train_serial, worst_error
from virtual_ranks import factorisations, run_ranks

from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.bert.config import BertConfig
from engine.models.vit.config import ViTConfig
from engine.overlap.flags import AUTO, Overlap

TOLERANCE = 1e-10
GRIDS = factorisations((2, 3, 4, 6, 8))
DRAWS, WEEKLY = 6, 60
"""So many are tried every time, and so many weekly."""
NARROWEST = 4
"""A norm of one feature gives 0 and of two 1 and -1, so that gradients before it are nothing but rounding."""


def bert(draw: random.Random) -> Architecture:
    heads, sequence = draw.randint(1, 12), draw.randint(6, 11)
    vocabulary = draw.randint(12, 60)
    return BertConfig(
        "drawn",
        layers=draw.randint(1, 3),
        hidden=heads * draw.randint(1, 6),
        heads=heads,
        vocabulary=vocabulary,
        sequence=sequence,
        ffn=draw.choice([None, draw.randint(4, 80)]),
        positions=draw.choice([None, draw.randint(sequence, 16)]),
        dropout=draw.choice([0.0, 0.3]),
        norm_eps=draw.choice([1e-12, 1e-3]),
        activation=draw.choice(["gelu", "gelu_tanh"]),
        padding=draw.choice([None, draw.randrange(vocabulary)]),
    )


def vit(draw: random.Random) -> Architecture:
    heads, patch = draw.randint(1, 12), draw.randint(1, 5)
    return ViTConfig(
        "drawn",
        layers=draw.randint(1, 3),
        hidden=heads * draw.randint(1, 6),
        heads=heads,
        image=patch * draw.randint(1, 4),
        patch=patch,
        classes=draw.randint(2, 60),
        ffn=draw.choice([None, draw.randint(4, 80)]),
        dropout=draw.choice([0.0, 0.3]),
        norm_eps=draw.choice([1e-6, 1e-3]),
        activation=draw.choice(["gelu", "gelu_tanh"]),
        head_std=0.1,
    )


def overlap(draw: random.Random) -> Overlap:
    on = {name: draw.random() < 0.5 for name in ("oar", "ors", "oag", "data")}
    pace = {"prefetch_depth": draw.randint(1, 4), "reduce_window": draw.randint(1, 4)}
    return Overlap(**on, cache=draw.choice([0, 1, AUTO]), bucket_bytes=draw.choice([1, 1e3, 1e6]), **pace)


def drawn(number: int, family: Callable[[random.Random], Architecture]) -> tuple[Case, Grid]:
    """Draw until the case can be trained."""
    draw = random.Random(f"{family.__name__} {number}")
    while True:
        model, grid, micro_batches = family(draw), draw.choice(GRIDS), draw.choice([1, 1, 2, 3])
        if model.hidden < NARROWEST:
            continue
        sequences = grid.batch_split * micro_batches * draw.randint(1, 2)
        case = Case(
            model,
            sequences=max(sequences, 2),
            micro_batches=micro_batches,
            overlap=overlap(draw),
            checkpoint=draw.choice([0, 1, 2]),
        )
        if grid.x * grid.y > 1 and draw.random() < 0.3 and model.layers > 1:
            grid = grid.with_stages(2)
            case = replace(case, order=make(draw.choice(["gpipe", "1f1b", "zero-bubble", "message-driven"])))
        try:
            model.check(grid)
            Batch(case.sequences, case.sequences // grid.batch_split // micro_batches).check(grid)
        except (UsageError, ZeroDivisionError):
            continue
        return case, grid


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", [bert, vit], ids=lambda family: family.__name__)
@pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=() if number < DRAWS else pytest.mark.weekly) for number in range(DRAWS + WEEKLY)],
)
def test_a_drawn_shape_trains_like_the_serial_model(
    number: int, family: Callable[[random.Random], Architecture]
) -> None:
    case, grid = drawn(number, family)
    ours = run_ranks(grid, lambda comm: train_parallel(case, comm))[0]
    assert worst_error(ours, train_serial(case)) < TOLERANCE, (case, grid)
