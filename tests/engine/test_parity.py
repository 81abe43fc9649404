"""Every grid trains as the serial model does, in float64: losses, gradients, and the parameters after SGD at rate 1."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest
from real_ranks import run_processes
from training import Case, Outcome, grid_id, train_parallel, train_serial, worst_error
from virtual_ranks import factorisations, run_ranks

from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.layers import compiled, elementwise, norm
from engine.models.architecture import Architecture
from engine.models.bert.config import BertConfig
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.models.vit.config import ViTConfig
from engine.overlap.flags import Overlap

TOLERANCE = 1e-10
GRIDS = [*factorisations(), Grid(2, 2, 2, 2), Grid(3, 2, 1, 2)]
SMALL = GPTConfig("small", layers=2, hidden=48, heads=24, vocabulary=96, sequence=6)
LLAMA = LlamaConfig("llama", layers=2, hidden=96, heads=48, kv_heads=24, ffn=72, vocabulary=96, sequence=6)
BERT = BertConfig("bert", layers=2, hidden=48, heads=24, vocabulary=96, sequence=6)
VIT = ViTConfig("vit", layers=2, hidden=48, heads=24, image=12, patch=4, classes=24, head_std=0.02)
FAMILIES: dict[str, Architecture] = {"gpt": SMALL, "llama": LLAMA, "bert": BERT, "vit": VIT}
# Little ahead, few in flight and small buckets, so that every limit is met in a small network.
EAGER = Overlap(oar=True, ors=True, oag=True, cache=1, data=True, prefetch_depth=3, reduce_window=2, bucket_bytes=1e5)
EVERYTHING = Case(replace(SMALL, tied=True, dropout=0.2), sequences=16, micro_batches=2, checkpoint=True, overlap=EAGER)
CASES = {
    "plain": Case(SMALL, overlap=Overlap()),
    "everything": EVERYTHING,
    "llama-plain": Case(LLAMA, overlap=Overlap()),
    "llama-everything": replace(EVERYTHING, config=replace(LLAMA, tied=True, rope_scaling=8.0)),
    "bert-everything": replace(EVERYTHING, config=replace(BERT, dropout=0.2)),
    "vit-everything": replace(EVERYTHING, config=replace(VIT, dropout=0.2)),
}
VARIANTS = {
    "no-bias": Case(replace(SMALL, bias=False)),
    "rmsnorm": Case(replace(SMALL, norm="rmsnorm"), checkpoint=True),
    "tied": Case(replace(SMALL, tied=True)),
    "dropout": Case(replace(SMALL, dropout=0.3)),
    "checkpoint": Case(SMALL, checkpoint=True),
    "micro-batches": Case(SMALL, sequences=16, micro_batches=4),
    "bert-plain": Case(BERT, overlap=Overlap()),
    "vit-plain": Case(VIT, overlap=Overlap()),
    "llama-tied": Case(replace(LLAMA, tied=True)),
    "llama-as-many-keys-as-queries": Case(replace(LLAMA, kv_heads=48)),
    "llama-checkpoint": Case(LLAMA, checkpoint=True),
    "llama-micro-batches": Case(LLAMA, sequences=16, micro_batches=4),
}
ADAPTED = {
    "qwen3": replace(EVERYTHING, config=replace(LLAMA, qkv_bias=True, qk_norm=True, head_features=4)),
    "neox": replace(EVERYTHING, config=replace(SMALL, heads=12, rotary=2, parallel_residual=True, ffn=72, dropout=0.2)),
}
UNEVEN = {
    "gpt": replace(SMALL, hidden=40, heads=5, ffn=70, vocabulary=97, tied=True, dropout=0.2),
    "llama": replace(LLAMA, hidden=40, heads=10, kv_heads=5, ffn=34, vocabulary=97, qkv_bias=True, qk_norm=True),
    "bert": replace(BERT, hidden=42, heads=7, ffn=70, vocabulary=97),
    "vit": replace(VIT, hidden=40, heads=5, ffn=70, image=15, patch=5, classes=11),
}
"""Networks of which hardly any grid divides a number but the hidden size."""
UNEVEN_GRIDS = [Grid(z=3), Grid(2, 1, 3, 1), Grid(z=5), Grid(3, 1, 1, 2), Grid(z=6), Grid(2, 2, 3, 1), Grid(z=7)]
ALL_AXES = [Grid(2, 2, 2, 1), Grid(2, 1, 2, 2), Grid(1, 2, 2, 2), Grid(4, 2, 1, 1)]


@cache
def serial(case: Case) -> Outcome:
    return train_serial(case)


def _spread() -> Iterator[Any]:
    """Yield every grid in every case: all of two ranks often, a quarter of four, an eighth of more."""
    for number, (name, case) in enumerate(CASES.items()):
        for place, grid in enumerate(GRIDS):
            turns = 1 if grid.size < 4 else 4 if grid.size == 4 else 8
            often = () if (number + place) % turns == 0 else pytest.mark.weekly
            yield pytest.param(case, grid, marks=often, id=f"{name}-{grid_id(grid)}")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("case", "grid"), list(_spread()))
def test_every_grid_trains_like_the_serial_model(case: Case, grid: Grid) -> None:
    ours = run_ranks(grid, lambda comm: train_parallel(case, comm))[0]
    assert worst_error(ours, serial(case)) < TOLERANCE


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("case", "grid"),
    [
        pytest.param(case, grid, id=f"{name}-{grid}")
        for number, (name, case) in enumerate(VARIANTS.items())
        for grid in ALL_AXES[number % 2 :: 2]
    ],
)
def test_each_option_alone_trains_like_the_serial_model(case: Case, grid: Grid) -> None:
    ours = run_ranks(grid, lambda comm: train_parallel(case, comm))[0]
    assert worst_error(ours, serial(case)) < TOLERANCE


@pytest.mark.parametrize("case", ADAPTED.values(), ids=ADAPTED.keys())
def test_the_shapes_of_other_peoples_networks_train_like_the_serial_model(case: Case) -> None:
    ours = run_ranks(Grid(2, 2, 2, 1), lambda comm: train_parallel(case, comm))[0]
    assert worst_error(ours, serial(case)) < TOLERANCE


def _on(grid: Grid, config: Architecture) -> Case:
    """Make the case of a network whose batch the grid divides."""
    return replace(EVERYTHING, config=config, sequences=2 * grid.batch_split)


def _spread_over_uneven() -> Iterator[Any]:
    """Yield every network on every grid: a quarter of them every time."""
    for number, (name, config) in enumerate(UNEVEN.items()):
        for place, grid in enumerate(UNEVEN_GRIDS):
            often = () if (number + place) % 4 == 0 else pytest.mark.weekly
            yield pytest.param(_on(grid, config), grid, marks=often, id=f"{name}-{grid_id(grid)}")


@pytest.mark.parametrize(("case", "grid"), list(_spread_over_uneven()))
def test_a_grid_that_divides_hardly_anything_trains_like_the_serial_model(case: Case, grid: Grid) -> None:
    ours = run_ranks(grid, lambda comm: train_parallel(case, comm))[0]
    assert worst_error(ours, serial(case)) < TOLERANCE


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers as on a GPU with a compiler, which run the source of what is compiled."""
    monkeypatch.setattr(compiled.Compiled, "fused", property(lambda one: one.source))
    for module in (compiled, elementwise, norm):
        monkeypatch.setattr(module, "fuses", lambda _: True)


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("grid", [Grid(), Grid(2, 2, 2, 1)], ids=grid_id)
@pytest.mark.parametrize(
    "case",
    [EVERYTHING, *(CASES[f"{name}-everything"] for name in ("llama", "bert", "vit")), *ADAPTED.values()],
    ids=lambda c: c.config.name,
)
def test_what_gpus_compile_trains_like_the_serial_model(case: Case, grid: Grid) -> None:
    ours = run_ranks(grid, lambda comm: train_parallel(case, comm))[0]
    assert worst_error(ours, serial(case)) < TOLERANCE


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("config", UNEVEN.values(), ids=UNEVEN.keys())
def test_what_gpus_compile_trains_so_where_the_grid_divides_hardly_anything(config: Architecture) -> None:
    grid = Grid(2, 2, 3, 1)
    case = _on(grid, config)
    ours = run_ranks(grid, lambda comm: train_parallel(case, comm))[0]
    assert worst_error(ours, serial(case)) < TOLERANCE


def _train(comm: Comm, case: Case) -> Outcome:
    return train_parallel(case, comm)


def _spread_over_processes() -> Iterator[Any]:
    """Yield both networks on every grid: half of them every time."""
    grids = [Grid(2, 1, 1, 1), Grid(1, 1, 2, 2), Grid(2, 2, 2, 1), Grid(1, 2, 2, 2)]
    for turn in product(range(2), range(len(grids))):
        name, grid = ["everything", "llama-everything"][turn[0]], grids[turn[1]]
        often = () if sum(turn) % 2 == 0 else pytest.mark.weekly
        yield pytest.param(name, grid, marks=often, id=f"{name}-{grid_id(grid)}")


@pytest.mark.parametrize(("name", "grid"), list(_spread_over_processes()))
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
