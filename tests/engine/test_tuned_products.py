"""The tuner times the products that training computes: op by op, with shapes, formats, beta and bias."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_parity import CASES
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from training import Case, start, step_parallel
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.layers import matmul
from engine.layers.matmul import Role
from engine.precision import Precision
from engine.training_record import PrecisionName, Training
from engine.tuning.shapes import Products, products
from engine.tuning.timing import Operands, gemm_variants

CPU = torch.device("cpu")
Op = tuple[object, ...]
PRODUCTS = ("mm", "addmm", "addmm_")


class Recording(TorchDispatchMode):
    """Every product of two matrices on this thread: its name, its beta, the sizes and formats of what it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[Op] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in PRODUCTS:
            taken = [(tuple(of.shape), of.dtype) for of in args if isinstance(of, Tensor)]
            self.ops.append((name, float((kwargs or {}).get("beta", 1)), *taken))
        return func(*args, **(kwargs or {}))


def trained(case: Case, grid: Grid) -> list[list[Op]]:
    """Products of rank 0 by micro-batch in the second step; the first can't know how often a weight is used."""

    def work(comm: Comm) -> list[Op]:
        model = start(case, comm)
        step_parallel(case, model, 0)
        with Recording() as recording:
            step_parallel(case, model, 1)
        return recording.ops

    ops = run_ranks(grid, work)[0]
    each, rest = divmod(len(ops), case.micro_batches)
    assert (each > 0, rest) == (True, 0)
    return [ops[first : first + each] for first in range(0, len(ops), each)]


def found(case: Case, grid: Grid) -> list[Products]:
    batch = Batch(case.sequences, case.sequences // grid.batch_split // case.micro_batches)
    precision: PrecisionName = case.precision  # type: ignore[assignment]
    training = Training(case.config, batch, precision=precision, checkpoint_every=case.checkpoint, tensor_mode="4d")
    return products(training, grid, CPU)


def timed(case: Case, of: list[Products]) -> Counter[Op]:
    """Ops of a micro-batch as the tuner times PyTorch's own."""
    ops: Counter[Op] = Counter()
    for each in of:
        operands = Operands(each, Precision.parse(case.precision), CPU, movable=False)
        for way in gemm_variants(torch.float64, CPU, movable=False):
            if way.own:
                with Recording() as recording:
                    operands.compute(way)
                (op,) = recording.ops
                ops[op] += len(each.layers) * (each.forwards if way.role is Role.FORWARD else 1)
    return ops


def widen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As GPUs do it; processors have no such kernel, so its arithmetic stands in."""

    def add(out: Tensor, a: Tensor, b: Tensor, beta: int, way: matmul.Widening) -> None:
        assert (out.dtype, a.dtype) == (torch.float32, torch.bfloat16)
        out.addmm_(a.float(), b.float(), beta=beta)

    monkeypatch.setattr(matmul, "widening", lambda narrow, wide, _: None if narrow == wide else matmul.Widening.ADDMM)
    monkeypatch.setattr(matmul, "_add_widened", add)


GRIDS = [Grid(), Grid(z=2), Grid(x=2), Grid(y=2), Grid(x=2, z=2), Grid(data=2)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
@pytest.mark.parametrize("micro_batches", [1, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "widened"])
@pytest.mark.parametrize("name", ["everything", "llama-plain"])
def test_what_is_timed_is_what_training_computes(
    name: str, precision: str, micro_batches: int, grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    if precision == "widened":
        widen(monkeypatch)
    named = "fp32" if precision == "fp32" else "bf16"
    case = replace(CASES[name], precision=named, micro_batches=micro_batches, steps=1)
    by_micro_batch = trained(case, grid)
    of = found(case, grid)
    assert timed(case, of) == Counter(by_micro_batch[-1])
    in_place = grid.z == 1 and precision != "bf16"
    assert {each.accumulates for each in of} == {in_place and micro_batches > 1}
    assert {each.widened for each in of} == {grid.z == 1 and precision == "widened"}
    betas = [{op[1] for op in ops if op[0] == "addmm_"} for ops in by_micro_batch]
    assert betas == [{0.0}] + [{1.0 if in_place else 0.0}] * (micro_batches - 1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda of: replace(of, bias=not of.bias),
        lambda of: replace(of, accumulates=not of.accumulates),
        lambda of: replace(of, forwards=of.forwards + 1),
    ],
    ids=["bias", "beta", "forwards"],
)
def test_a_product_that_is_timed_otherwise_is_noticed(wrong: Callable[[Products], Products]) -> None:
    case = replace(CASES["everything"], precision="fp32", micro_batches=2, steps=1)
    of = found(case, Grid())
    right = Counter(trained(case, Grid())[-1])
    assert timed(case, of) == right
    assert timed(case, [wrong(of[0]), *of[1:]]) != right


def test_a_bias_is_fused_only_where_nothing_is_summed_after_the_product() -> None:
    case = CASES["everything"]
    fused = [
        {each.bias for each in found(case, grid) if "head" not in each.layers} for grid in (Grid(), Grid(x=2, y=2))
    ]
    assert fused == [{True}, {False}]
