"""bf16 compute over fp32 masters: close to fp64 within bf16's rounding, and no worse over many micro-batches."""

from dataclasses import replace

import pytest
import torch
from test_parity import FAMILIES, SMALL
from training import SEED, Case, error, grid_id, start, step_parallel, train_parallel, train_serial
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
    model = parallelize(case.config, comm, precision=Precision.named("bf16", reduce), seed=SEED)
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


def _widened(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, beta: int) -> None:
    out.copy_(beta * out + a.float() @ b.float())


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_where_a_product_widens_no_weight_gradient_is_rounded(
    micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As GPUs do it; processors have no such kernel, so its arithmetic stands in."""
    case = Case(SMALL, steps=1, precision="bf16", micro_batches=micro_batches)
    reference = train_serial(replace(case, precision="fp64")).gradients
    rounded = _gradients(Comm(Grid()), case, "bf16")
    monkeypatch.setattr(matmul, "widens", lambda *_: True)
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


def test_a_processor_widens_no_product() -> None:
    assert not matmul.widens(torch.bfloat16, torch.float32, torch.device("cpu"))


def test_masters_and_gradients_are_fp32_under_bf16() -> None:
    model = start(Case(SMALL, precision="bf16"), Comm(Grid()))
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert model.flat_gradients.dtype == torch.float32
    assert model(torch.zeros(1, 4, dtype=torch.int64)).dtype == torch.bfloat16


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
