"""AdamW on shards, clipping and the rate's course, against PyTorch on the serial model."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_parity import LLAMA, SMALL
from training import Case, batch_of_step, build_serial, divisor_of, error, grid_id, start, step_parallel
from virtual_ranks import run_ranks

from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.parallel.model import clip_scale, sum_of_squares
from engine.parallel.serial_state import full_state_dict
from engine.training import optim
from engine.training.optim import AdamW, learning_rate
from engine.training_record import OptimConfig

CASE = Case(replace(SMALL, tied=True), sequences=8)
CONFIG = OptimConfig(learning_rate=1e-2, weight_decay=0.5, clip=0.05)
STEPS = 3


def _serial(case: Case) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = build_serial(case)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.5}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad()
        batch = batch_of_step(case, step)
        model.loss(batch, divisor=divisor_of(case, batch)).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CONFIG.clip).item())
        optimizer.step()
    return norms, {name: p.detach() for name, p in model.named_parameters()}


def _parallel(comm: Comm, case: Case) -> tuple[list[float], dict[str, torch.Tensor]]:
    model = start(case, comm)
    optimizer = AdamW(model, CONFIG)
    norms = []
    for step in range(STEPS):
        step_parallel(case, model, step)
        norm = model.gradient_norm()
        optimizer.start_step(step)
        optimizer.step(scale=clip_scale(norm, CONFIG.clip))
        norms.append(norm.item())
    return norms, full_state_dict(model)


@pytest.mark.parametrize(
    "grid",
    [Grid(), Grid(2, 1, 1, 1), Grid(1, 2, 1, 1), Grid(1, 1, 2, 1), Grid(2, 2, 2, 1), Grid(3, 2, 1, 2)],
    ids=grid_id,
)
@pytest.mark.parametrize("case", [CASE, Case(LLAMA)], ids=["gpt", "llama"])
def test_clipped_adamw_equals_pytorch_on_the_serial_model(case: Case, grid: Grid) -> None:
    reference_norms, reference = _serial(case)
    for norms, _ in (results := run_ranks(grid, lambda comm: _parallel(comm, case))):
        assert norms == pytest.approx(reference_norms, rel=1e-10)
    assert reference_norms[0] > 2 * CONFIG.clip
    for name, parameter in reference.items():
        assert error(results[0][1][name], parameter) < 1e-10, name


def test_what_gpus_compile_steps_as_pytorch_does_and_leaves_gradients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    source = optim.adamw.source

    def step(*given: Any) -> None:
        gradients = given[1].clone()
        source(*given)
        assert torch.equal(given[1], gradients)

    monkeypatch.setattr(optim, "adamw", step)
    _, reference = _serial(CASE)
    _, ours = _parallel(Comm(Grid()), CASE)
    for name, parameter in reference.items():
        assert error(ours[name], parameter) < 1e-10, name


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_clipping_is_part_of_the_step_and_skipped_by_a_processor_that_needs_none(precision: str) -> None:
    case = replace(CASE, precision=precision)
    found = []
    for scale in (torch.tensor(0.25), torch.tensor(1.0)):
        model = start(case, Comm(Grid()))
        step_parallel(case, model, 0)
        if scale == 1:
            model.flat_gradients.mul_(0.25)
        gradients = model.flat_gradients.clone()
        AdamW(model, CONFIG).step(scale=scale)
        assert torch.equal(model.flat_gradients, gradients) == (scale == 1)
        found.append(full_state_dict(model))
    for name, parameter in found[1].items():
        torch.testing.assert_close(found[0][name], parameter, rtol=1e-6, atol=1e-6)


def test_long_gradients_lose_no_more_than_a_rounding_of_their_sum() -> None:
    """torch's own norm of the first is 2e-4 off."""
    torch.manual_seed(0)
    tensors = [torch.randn(4_000_037) * torch.rand(4_000_037), torch.randn(3, 5), torch.randn(0)]
    wanted = sum(tensor.double().square().sum() for tensor in tensors)
    assert sum_of_squares(tensors).item() == pytest.approx(float(wanted), rel=1e-6)


def test_a_norm_below_the_limit_scales_by_one() -> None:
    norm = torch.tensor(0.5)
    assert clip_scale(norm, 1e6) == 1
    assert clip_scale(norm, 0.25).item() == pytest.approx(0.5, rel=1e-5)


def test_the_rate_warms_up_linearly_and_falls_along_a_cosine() -> None:
    config = OptimConfig(learning_rate=1.0, warmup_steps=4, decay_steps=14, final_fraction=0.1)
    rates = [learning_rate(config, step) for step in range(20)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[4] == pytest.approx(1.0)
    assert rates[9] == pytest.approx(0.55)
    assert [rates[14], rates[19]] == pytest.approx([0.1, 0.1])
    assert rates[4:15] == sorted(rates[4:15], reverse=True)
    assert learning_rate(OptimConfig(learning_rate=2.0), 1000) == pytest.approx(2.0)
