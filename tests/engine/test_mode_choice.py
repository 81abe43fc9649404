"""Which tensor mode a name comes to on a grid, and what can't lie so is refused by what would fit."""

from contextlib import nullcontext
from dataclasses import replace
from typing import get_args

import pytest

from engine.batch import Batch
from engine.errors import UsageError
from engine.footprint.memory import Footprint
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.models.flops import repeated_flops
from engine.models.mode_choice import ModeName, choose_mode
from engine.planning.workload import Workload
from engine.tensor_mode import ALGORITHM_1, SPLIT, SPLIT_HEADS
from engine.training_record import Training, TrainingOptions

GPT = lookup("gpt-test")


def training(name: ModeName, sequences: int, micro: int | None = None, model: str = "gpt-test") -> Training:
    return Training.of(TrainingOptions(tensor_mode=name), lookup(model), Batch(sequences, micro))


@pytest.mark.parametrize(
    ("name", "grid", "samples", "mode"),
    [
        ("4d", Grid(y=2), 8, "4d"),
        ("split", Grid(y=2), 8, "split"),
        ("split", Grid(y=2), 3, "split-heads"),
        ("split", Grid(x=2), 3, "split"),
        ("split-heads", Grid(y=2), 8, "split-heads"),
        ("auto", Grid(x=2), 8, "4d"),
        ("auto", Grid(y=2), 8, "split"),
        ("auto", Grid(y=2), 1, "split-heads"),
        ("auto", Grid(y=GPT.heads * 2), 1, "4d"),
    ],
)
def test_a_name_comes_to_a_mode_by_the_grid_and_the_micro_batch(
    name: ModeName, grid: Grid, samples: int, mode: str
) -> None:
    assert choose_mode(name, GPT.network(), grid, samples).name == mode


def test_images_are_not_split_on_their_own() -> None:
    network = lookup("unet-tiny").network()
    assert choose_mode("auto", network, Grid(y=2), 8) == ALGORITHM_1
    with pytest.raises(UsageError, match="--tensor-mode 4d"):
        training("split", 8, model="unet-tiny").check_mode(Grid(y=2))


@pytest.mark.parametrize(
    ("name", "grid", "batch", "numbers"),
    [
        ("split", Grid(x=2, y=GPT.heads), (3,), f"3 samples .* {GPT.heads} ranks, or {GPT.heads} heads"),
        ("split-heads", Grid(x=3), (4,), f"{GPT.heads} heads among 3"),
        ("split", Grid(x=3), (4,), f"{4 * GPT.sequence} tokens .* 3 ranks"),
    ],
)
def test_what_no_rank_could_share_is_refused_with_what_would_fit(
    name: ModeName, grid: Grid, batch: tuple[int], numbers: str
) -> None:
    with pytest.raises(UsageError, match=numbers):
        training(name, *batch).check_mode(grid)
    assert not Workload(training(name, *batch)).allows(grid, None)
    training("auto", *batch).check_mode(grid)


def test_a_training_tells_the_mode_that_it_comes_to_and_repeats_nothing_in_it() -> None:
    options = training("auto", 8).options_on(Grid(y=2))
    assert options["tensor_mode"] == "split"
    assert TrainingOptions(tensor_mode="split").words() == ["--tensor-mode", "split"]
    grid = Grid(y=4)
    for mode in (SPLIT, SPLIT_HEADS):
        assert repeated_flops(GPT, 8, grid, recomputed=GPT.layers, mode=mode) == 0
    assert repeated_flops(GPT, 8, grid, recomputed=GPT.layers) > 0


@pytest.mark.parametrize("name", get_args(ModeName))
def test_inputs_are_gathered_again_where_a_mode_gathers_them_and_else_the_option_is_refused(name: ModeName) -> None:
    again = replace(training(name, 8), gather_inputs_again=True)
    gathers = any(again.mode(grid).gathers_again for grid in (Grid(x=2), Grid(y=2), Grid(2, 2)))
    with nullcontext() if gathers else pytest.raises(UsageError, match=name):
        TrainingOptions(tensor_mode=name, gather_inputs_again=True).check(GPT)
    assert again.options_on(Grid(x=2))["gather_inputs_again"] == (name in ("split", "split-heads", "3d"))


def test_unless_it_is_said_no_attention_is_repeated() -> None:
    usual = Training.of(TrainingOptions(), GPT, Batch(8))
    assert [usual.mode(grid) for grid in (Grid(x=2), Grid(y=2), Grid(2, 2))] == [ALGORITHM_1, SPLIT, SPLIT]


@pytest.mark.parametrize("checkpoint", [0, 1])
def test_a_split_step_needs_less_memory_for_activations(checkpoint: int) -> None:
    grid = Grid(x=2, y=2)
    whole, split = (
        Footprint(replace(training(name, 16), checkpoint_every=checkpoint)).on(grid) for name in ("4d", "split")
    )
    assert split.activations < whole.activations
    assert (split.state, split.weights) == (whole.state, whole.weights)
