"""The table of tensor modes by feature in the engine's README: what it says works does, and the rest is refused."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from library_models import batch_for, build, loss_and_gradients
from pipelines import make
from test_offload import CASE, same, train
from test_parity import LLAMA, SMALL, TOLERANCE
from training import Case, batch_of_step, build_serial, start, train_parallel, train_serial, worst_error
from virtual_ranks import run_ranks

from engine.comm.funnel import Comm
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.adapters.library import understand
from engine.models.catalogue import lookup
from engine.models.mode_choice import check_mode
from engine.parallel.parallelize import parallelize
from engine.precision import Precision
from engine.tensor_mode import ALGORITHM_1, SPLIT, SPLIT_HEADS, SQUARE, TensorMode

README = Path(__file__).parents[2] / "engine" / "README.md"
GRID = Grid(2, 2)
MODES: Mapping[str, TensorMode] = {mode.name: mode for mode in (ALGORITHM_1, SPLIT, SPLIT_HEADS, SQUARE)}
GPT = replace(SMALL, heads=12)


def table() -> dict[tuple[str, str], str]:
    """Cells of the table, by mode and feature."""
    rows = [line.strip().strip("|").split("|") for line in README.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip(" `") for cell in row] for row in rows]
    heads = next(row for row in cells if row[0] == "--tensor-mode")
    return {
        (row[0], feature): cell
        for row in cells
        if row[0] in MODES and len(row) == len(heads)
        for feature, cell in zip(heads[1:], row[1:], strict=True)
    }


@cache
def serial(case: Case) -> object:
    return train_serial(case)


def trains(case: Case, mode: TensorMode, grid: Grid = GRID) -> bool:
    ours = run_ranks(grid, lambda comm: train_parallel(replace(case, mode=mode), comm))[0]
    return worst_error(ours, serial(case)) < TOLERANCE  # type: ignore[arg-type]


def in_stages(mode: TensorMode) -> bool:
    case = Case(replace(GPT, layers=4), sequences=16, micro_batches=4, order=make("1f1b"))
    return trains(case, mode, GRID.with_stages(2))


def offloads(mode: TensorMode) -> bool:
    training = replace(CASE, model=GPT, tensor_mode=mode.name)
    return all(map(same, train(replace(training, offload=True), GRID, 2), train(training, GRID, 2)))


def in_fp16(mode: TensorMode) -> bool:
    steps = [
        train(replace(CASE, model=LLAMA, precision="fp16", tensor_mode=name), GRID, 2)[0].steps
        for name in (mode.name, ALGORITHM_1.name)
    ]
    return [float(step.split()[0]) for step in steps[0]] == pytest.approx([float(s.split()[0]) for s in steps[1]], 0.01)


def evaluates(mode: TensorMode) -> bool:
    case = Case(replace(GPT, dropout=0.5), mode=mode)
    batch = batch_of_step(case, 0)

    def loss(comm: Comm) -> float:
        model = start(case, comm).eval()
        with torch.no_grad():
            return model.loss(batch, divisor=8.0).item()

    with torch.no_grad():
        expected = build_serial(case).eval().loss(batch, divisor=8.0).item()
    return run_ranks(GRID, loss) == pytest.approx([expected] * GRID.size, rel=1e-12)


def of_a_library(mode: TensorMode) -> bool:
    model = build("llama")
    task = understand(model).architecture.task
    loss, gradients = loss_and_gradients(model, task)
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm().item()
    batch = batch_for(task)

    def step(comm: Comm) -> tuple[float, float]:
        parallel = parallelize(model, comm, precision=Precision.parse("fp64"), seed=0, mode=mode)
        parallel.start_step()
        found = parallel.loss(batch, divisor=task.valid(batch))
        found.backward()
        parallel.finish_step()
        return found.item(), parallel.gradient_norm().item()

    return all(found == pytest.approx((loss, norm), rel=1e-12) for found in run_ranks(GRID, step))


def of_images(mode: TensorMode) -> bool:
    """Whether it is allowed: that it trains is the matter of test_unet_grid."""
    try:
        check_mode(mode.name, lookup("unet-tiny").network(), GRID, 8)  # type: ignore[arg-type]
    except UsageError:
        return False
    return True


FEATURES: Mapping[str, Callable[[TensorMode], bool]] = {
    "pipe": in_stages,
    "offload": offloads,
    "fp16": in_fp16,
    "checkpointing": lambda mode: trains(Case(GPT, micro_batches=2, checkpoint=1, sequences=16), mode),
    "tied table": lambda mode: trains(Case(replace(GPT, tied=True), sequences=16), mode),
    "U-Net": of_images,
    "hf:": of_a_library,
    "evaluation": evaluates,
}


def test_the_table_has_a_cell_for_every_mode_and_feature() -> None:
    assert table().keys() == {(mode, feature) for mode in MODES for feature in FEATURES}
    assert set(table().values()) == {"yes", "no"}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("mode", MODES)
def test_a_cell_of_the_table_says_what_is(mode: str, feature: str) -> None:
    assert FEATURES[feature](MODES[mode]) is (table()[mode, feature] == "yes")
