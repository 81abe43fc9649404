"""Two runs of a step give the same numbers to the last bit: on CUDA too, no operator adds in an order of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from dry_plans import dry_plan
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from training import Case, grid_id, start, step_parallel
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.comm.groups import fake_group
from engine.grid import Grid
from engine.layers import embedding
from engine.layers.embedding import add_rows
from engine.measure.recorder import Recorder
from engine.models.catalogue import lookup
from engine.overlap.flags import ALL
from engine.tracing.watch import Log, fused_attention
from engine.training.trainer import Trainer

IN_ANY_ORDER = {
    "index_add", "index_add_", "scatter_add", "scatter_add_", "scatter_", "scatter", "scatter_reduce",
    "scatter_reduce_", "index_reduce_", "index_copy_", "put_", "cumsum", "cumsum_", "bincount", "histc",
    "nll_loss_forward", "nll_loss2d_forward", "_embedding_bag", "median",
}  # fmt: skip
"""Of the operators that torch.use_deterministic_algorithms() replaces or refuses on CUDA, those that a network of ours
could come to use. Attention, which a trace has as one event, is none of them: engine/README.md says so.
"""
ONE_INDEX_A_ROW = {"scatter_add_", "scatter_"}
"""The loss adds to one column of each row: no two of its sums meet."""


class Operators(TorchDispatchMode):
    """The names of all that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        self.names.add(name)
        if name in ONE_INDEX_A_ROW:
            assert args[2].shape[args[1]] == 1, "two sums may meet"
        if "_fused_adamw_" in name:
            return None
        return func(*args, **(kwargs or {}))


def _operators_of_a_step(model: str, grid: Grid) -> set[str]:
    """List the operators on the meta device, which takes the ways of a GPU."""
    training, _ = dry_plan(lookup(model), grid, Batch(8), overlap=ALL)
    operators = Operators()
    with fake_group(grid, 0), operators, fused_attention(Log()):
        comm = Comm(grid, recorder=Recorder(), device="meta")
        assert comm.recorder is not None
        Trainer(training, training.model.task.data.synthetic(), comm, comm.recorder).launch_step()
    return operators.names


@pytest.mark.parametrize("grid", [Grid(), Grid(2, 2, 2, 1)], ids=grid_id)
@pytest.mark.parametrize("model", ["gpt-test", "llama-test"])
def test_no_operator_of_a_step_adds_in_an_order_of_its_own(model: str, grid: Grid) -> None:
    found = _operators_of_a_step(model, grid)
    assert "_index_put_impl_" in found, "the token table's gradient, of which the public form has a GPU's host wait"
    assert not found & IN_ANY_ORDER - ONE_INDEX_A_ROW


def test_an_embedding_that_adds_by_atomics_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "add_rows", lambda out, rows, values: out.index_add_(0, rows, values))
    assert "index_add_" in _operators_of_a_step("gpt-test", Grid())


def test_rows_of_one_number_are_all_added_whatever_the_device_takes() -> None:
    rows, values = torch.tensor([3, 0, 3, 3]), torch.randn(4, 5, dtype=torch.float64)
    wanted = torch.ones(6, 5, dtype=torch.float64)
    found = wanted.clone()
    for row, value in zip(rows.tolist(), values, strict=True):
        wanted[row] += value
    add_rows(found, rows, values)
    torch.testing.assert_close(found, wanted)
    on_a_gpu = torch._index_put_impl_(torch.ones_like(wanted), (rows,), values, accumulate=True, unsafe=True)
    torch.testing.assert_close(on_a_gpu, wanted, rtol=1e-14, atol=0)


@pytest.mark.parametrize("grid", [Grid(), Grid(2, 1, 2, 2)], ids=grid_id)
def test_two_runs_of_two_steps_are_alike_to_the_last_bit(grid: Grid) -> None:
    case = Case(lookup("gpt-test"), sequences=8, precision="bf16", overlap=ALL)  # type: ignore[arg-type]

    def work(comm: Comm) -> list[Tensor]:
        model, gradients = start(case, comm), []
        for number in range(2):
            step_parallel(case, model, number)
            gradients.append(model.flat_gradients.clone())
        return gradients

    first, second = (run_ranks(grid, work) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
        assert any(gradient.any() for gradient in one)
