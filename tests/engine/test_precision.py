"""bf16 compute over fp32 masters: close to fp64 within bf16's rounding, and no worse over many micro-batches."""

from dataclasses import replace

import pytest
import torch
from test_parity import FAMILIES, SMALL
from training import SEED, Case, error, grid_id, step_parallel, train_parallel, train_serial
from virtual_ranks import run_ranks

from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.layers import matmul
from engine.models.architecture import Architecture
from engine.parallel.parallelize import parallelize
from engine.parallel.serial_state import full_gradients
from engine.precision import Precision

BF16_EPS = 2.0**-8


@pytest.mark.parametrize("grid", [Grid(), Grid(2, 2, 2, 1), Grid(1, 1, 4, 2)], ids=grid_id)
@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES.keys())
def test_bf16_gradients_stay_within_a_few_roundings_of_fp64(model: Architecture, grid: Grid) -> None:
    case = Case(model, steps=1, precision="bf16")
    ours = run_ranks(grid, lambda comm: train_parallel(case, comm))[0]
    reference = train_serial(replace(case, precision="fp64"))
    assert abs(ours.losses[0] / reference.losses[0] - 1) < BF16_EPS
    for name, gradient in reference.gradients.items():
        difference = (ours.gradients[name].double() - gradient).norm() / gradient.norm()
        # A gradient passes some dozen bf16 roundings on its way through two layers.
        assert difference < 8 * BF16_EPS, name


def _gradients(comm: Comm, case: Case, reduce: str) -> dict[str, torch.Tensor]:
    model = parallelize(case.config, comm, precision=Precision.parse("bf16", reduce), seed=SEED)
    step_parallel(case, model, 0)
    return full_gradients(model)


def test_sixteen_micro_batches_err_no_more_than_one_because_sums_are_kept_in_fp32() -> None:
    case = Case(SMALL, sequences=32, steps=1, precision="bf16")
    reference = train_serial(replace(case, precision="fp64")).gradients
    errors = {}
    for micro_batches in (1, 16):
        part = replace(case, micro_batches=micro_batches)
        ours = run_ranks(Grid(1, 1, 2, 1), lambda comm, part=part: _gradients(comm, part, "bf16"))[0]
        errors[micro_batches] = max(((ours[n].double() - g).norm() / g.norm()).item() for n, g in reference.items())
    assert errors[16] <= errors[1]
    matrices = [gradient for gradient in ours.values() if gradient.dim() > 1]
    assert not any(torch.equal(sums, sums.bfloat16().float()) for sums in matrices), "a sum was rounded to bf16"


def _widened(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, beta: int, way: matmul.Widening) -> None:
    out.copy_(beta * out + a.float() @ b.float())


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_where_a_product_widens_no_weight_gradient_is_rounded(
    micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processors have no such kernel, so its arithmetic stands in."""
    case = Case(SMALL, steps=1, precision="bf16", micro_batches=micro_batches)
    reference = train_serial(replace(case, precision="fp64")).gradients
    rounded = _gradients(Comm(Grid()), case, "bf16")
    monkeypatch.setattr(matmul, "widening", lambda *_: matmul.Widening.ADDMM)
    monkeypatch.setattr(matmul, "_add_widened", _widened)
    ours = _gradients(Comm(Grid()), case, "bf16")
    weights = [
        name for name in reference if name.startswith("blocks.") and name.endswith("weight") and "norm" not in name
    ]
    assert weights
    for name in weights:
        assert not torch.equal(ours[name], ours[name].bfloat16().float())
        assert torch.equal(rounded[name], rounded[name].bfloat16().float()) == (micro_batches == 1)
        exact = reference[name]
        errors = [((found[name].double() - exact).norm() / exact.norm()).item() for found in (ours, rounded)]
        assert errors[0] < 1.05 * errors[1]


BF16, FP32, CPU = torch.bfloat16, torch.float32, torch.device("cpu")


def test_a_processor_widens_no_product() -> None:
    assert matmul.widening(BF16, FP32, CPU) is None
    assert matmul.first_that_widens(BF16, FP32, CPU) is None, "its library has no such kernel"


class Library:
    """Library of a GPU: products with out_dtype. addmm_takes: formats of the sum that its addmm adds to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, addmm_takes: set[torch.dtype], *, wrong: float = 0.0) -> None:
        self._addmm_takes, self._wrong = addmm_takes, wrong
        self._mm = torch.mm
        monkeypatch.setattr(torch, "addmm", self.addmm)
        monkeypatch.setattr(torch, "mm", self.mm)

    def mm(
        self, a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        product = self._mm(a.to(out_dtype), b.to(out_dtype))
        return product if out is None else out.copy_(product)

    def addmm(
        self,
        total: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        *,
        out_dtype: torch.dtype,
        beta: int,
        out: torch.Tensor,
    ) -> torch.Tensor:
        if total.dtype not in self._addmm_takes:
            raise RuntimeError("self and mat2 must have the same dtype, but got Float and BFloat16")
        return out.copy_((beta * total if beta else 0) + self.mm(a, b, out_dtype=out_dtype) + self._wrong)


def test_the_first_product_that_sums_unrounded_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for takes, wrong, expected in (
        ({BF16, FP32}, 0.0, matmul.Widening.ADDMM),
        ({BF16}, 0.0, matmul.Widening.MM),
        ({BF16, FP32}, 1e-3, matmul.Widening.MM),
    ):
        with monkeypatch.context() as patch:
            Library(patch, takes, wrong=wrong)
            assert matmul.first_that_widens(BF16, FP32, CPU) == expected


@pytest.mark.parametrize("column_major", [False, True])
def test_a_library_whose_addmm_takes_no_wide_sum_makes_the_same_weight_gradients(
    column_major: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dO, inputs = torch.randn(32, 8).bfloat16(), torch.randn(32, 6).bfloat16()
    Library(monkeypatch, {BF16})
    monkeypatch.setattr(matmul, "widening", lambda *_: matmul.first_that_widens(BF16, FP32, CPU))
    out = torch.full((6, 8), torch.nan).t() if column_major else torch.full((8, 6), torch.nan)
    exact = dO.double().t() @ inputs.double()
    for times, add in ((1, False), (2, True)):
        matmul.weight_gradient(out, dO, inputs, add=add)
        torch.testing.assert_close(out.double(), times * exact, rtol=1e-5, atol=1e-5)


def test_reducing_in_fp32_moves_twice_the_bytes_of_bf16() -> None:
    case = Case(SMALL, sequences=2, steps=1, precision="bf16")

    def num_bytes(comm: Comm, reduce: str) -> int:
        assert comm.recorder is not None
        comm.recorder.start_step("all")
        _gradients(comm, case, reduce)
        comm.recorder.end_step()
        return comm.recorder.total.tallies["reduce_scatter", "z"].num_bytes

    grid = Grid(1, 1, 2, 1)
    half = run_ranks(grid, lambda comm: num_bytes(comm, "bf16"), record=True)[0]
    assert half
    assert run_ranks(grid, lambda comm: num_bytes(comm, "fp32"), record=True)[0] == 2 * half


def test_error_counts_a_nan_as_infinite() -> None:
    assert error(torch.tensor([1.0, float("nan")]), torch.ones(2)) == float("inf")
