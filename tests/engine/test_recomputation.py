"""Activation checkpointing keeps the input of every N-th block, and runs N blocks again together: all, or the first."""

from dataclasses import replace
from functools import cache

import pytest
from test_passes import gathers_once_known
from training import (
    Case,
    Outcome,
    Written,
    batch_of_step,
    build_serial,
    grid_id,
    train_parallel,
    train_serial,
    worst_error,
)
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.bert.config import BertConfig
from engine.models.choice import ModelChoice
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.overlap.flags import Overlap
from engine.training.checks import checked
from engine.training.config import TrainConfig
from engine.training_record import CheckpointEvery, near_the_root

GPT = GPTConfig("gpt", layers=5, hidden=16, heads=4, vocabulary=32, sequence=4, tied=True, dropout=0.2)
LLAMA = LlamaConfig("llama", layers=5, hidden=16, heads=4, kv_heads=2, ffn=24, vocabulary=32, sequence=4)
BERT = BertConfig("bert", layers=5, hidden=16, heads=4, vocabulary=32, sequence=4)
EAGER = Overlap(oar=True, ors=True, oag=True, cache=3, data=True, prefetch_depth=3, reduce_window=2, bucket_bytes=1e3)
CASE = Case(GPT, sequences=12, micro_batches=3, order=Written("F0 F1 B0 F2 B1 B2"), overlap=EAGER)


@cache
def serial(model: Architecture) -> Outcome:
    return train_serial(replace(CASE, config=model))


@pytest.mark.parametrize(
    ("model", "grid", "every"),
    [
        (GPT, Grid(), 2),
        (GPT, Grid(z=2), 2),
        (GPT, Grid(2, 1, 2, 1), 4),
        (LLAMA, Grid(z=2), 5),
        (LLAMA, Grid(1, 2, 1, 2), 3),
        (BERT, Grid(z=2), 2),
    ],
    ids=lambda value: getattr(value, "family", str(value)),
)
def test_groups_of_any_size_train_like_the_serial_model(model: Architecture, grid: Grid, every: int) -> None:
    case = replace(CASE, config=model, checkpoint=every)
    assert worst_error(run_ranks(grid, lambda comm: train_parallel(case, comm))[0], serial(model)) < 1e-10


@pytest.mark.parametrize("grid", [Grid(pipe=2), Grid(z=2, pipe=2)], ids=grid_id)
def test_a_stage_of_a_pipeline_has_groups_of_its_own(grid: Grid) -> None:
    order = Written("F0 B0 F1 B1 F2 B2")
    case = replace(CASE, checkpoint=2, order=order)
    assert worst_error(run_ranks(grid, lambda comm: train_parallel(case, comm))[0], serial(GPT)) < 1e-10


@pytest.mark.parametrize(
    ("model", "grid", "every", "first"),
    [
        (GPT, Grid(z=2), 1, 3),
        (GPT, Grid(2, 1, 2, 1), 2, 3),
        (LLAMA, Grid(1, 2, 1, 2), 1, 1),
        (BERT, Grid(x=2), 3, 4),
        (GPT, Grid(pipe=2), 1, 2),
        (GPT, Grid(z=2, pipe=2), 2, 4),
        (GPT, Grid(z=2, pipe=2), 1, 1),
    ],
    ids=lambda value: getattr(value, "family", str(value)),
)
def test_the_first_blocks_alone_run_again_with_the_same_numbers(
    model: Architecture, grid: Grid, every: int, first: int
) -> None:
    order = Written("F0 B0 F1 B1 F2 B2") if grid.stages > 1 else CASE.order
    case = replace(CASE, config=model, checkpoint=every, recomputed=first, order=order)
    assert worst_error(run_ranks(grid, lambda comm: train_parallel(case, comm))[0], serial(model)) < 1e-10


@pytest.mark.parametrize(
    ("every", "first", "again"),
    [
        (1, None, [4, 3, 2, 1, 0]),
        (2, None, [4, 2, 3, 0, 1]),
        (9, None, [0, 1, 2, 3, 4]),
        (1, 3, [2, 1, 0]),
        (2, 3, [2, 0, 1]),
    ],
)
def test_the_last_group_may_be_shorter_and_runs_again_first(every: int, first: int | None, again: list[int]) -> None:
    model, ran = build_serial(replace(CASE, config=LLAMA, checkpoint=every, recomputed=first)), list[int]()
    for number, block in enumerate(model.blocks):
        block.register_forward_pre_hook(lambda *_, number=number: ran.append(number))
    model.loss(batch_of_step(replace(CASE, config=LLAMA), 0)).backward()
    assert ran == [0, 1, 2, 3, 4, *again]


@pytest.mark.parametrize(
    ("every", "cached", "first"), [(2, 0, 5), (2, 3, 5), (3, 1, 5), (5, 2, 5), (1, 2, 3), (2, 0, 4), (1, 3, 2)]
)
def test_once_the_groups_are_known_every_gather_is_ahead_of_its_use(every: int, cached: int, first: int) -> None:
    case = replace(CASE, checkpoint=every, recomputed=first, overlap=replace(EAGER, cache=cached))
    weights_of_block, of_a_tied_table, blocks = 4, 2, GPT.layers + first - min(cached, first)
    expected = {"ahead": case.micro_batches * (blocks * weights_of_block + of_a_tied_table)}
    assert gathers_once_known(case, Grid(z=2)) == [expected] * 2


@pytest.mark.parametrize(
    ("layers", "stages", "every"),
    [(24, 1, 4), (24, 6, 4), (24, 4, 6), (48, 4, 6), (48, 24, 2), (36, 1, 6), (7, 1, 1), (12, 1, 3), (10, 3, 4)],
)
def test_auto_is_the_factor_of_a_stages_layers_nearest_to_the_root_of_all(layers: int, stages: int, every: int) -> None:
    assert near_the_root(layers, stages) == every


@pytest.mark.parametrize(
    ("each", "every", "recorded"), [(False, None, 0), (True, None, 1), (False, 4, 4), (True, 4, 4), (False, "auto", 2)]
)
def test_both_options_are_one_in_the_training_and_the_record_has_what_it_came_to(
    each: bool, every: CheckpointEvery | None, recorded: int
) -> None:
    model = ModelChoice(layers=8, hidden=16, heads=2, vocab=16, seq=4)
    config = TrainConfig(
        model=model, batch=Batch(4), data="synthetic", checkpoint_activations=each, checkpoint_every=every
    )
    run = checked(config, 1)
    assert run.training.checkpoint_group(run.grid) == recorded
    options = run.as_options()
    assert (options["checkpoint_activations"], options["checkpoint_every"]) == (recorded > 0, recorded)
