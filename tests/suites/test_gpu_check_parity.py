"""ci/gpu's parity of layers and steps: what is right passes, and what is wrong fails, in fp32 and in bf16."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.layers import conv2d, matmul
from engine.layers.counter_random import BatchRows
from engine.measure.gemm import full_precision
from gpu_check import layers, rounding, steps, ways

CPU = torch.device("cpu")


@pytest.mark.slow
def test_layers_and_steps_are_right_in_fp32_and_a_wrong_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {finding.status for part in (layers.layers, steps.steps) for finding in part(CPU, "fp32")} == {"pass"}

    def off_by_the_rounding_of_tf32(exact: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        return lambda *operands: exact(*operands) * (1 + 2**-11)

    monkeypatch.setattr(matmul, "forward", off_by_the_rounding_of_tf32(matmul.forward))
    convolved = off_by_the_rounding_of_tf32(conv2d.F.conv2d)
    monkeypatch.setattr(conv2d, "F", SimpleNamespace(conv2d=convolved))
    failed = {finding.name for finding in layers.layers(CPU, "fp32") if finding.status == "fail"}
    assert failed == {"linear layer, all modes, fp32", "convolution, fp32"}
    wrong = ["fail"] * (len(ways.WAYS) - 1)
    assert [finding.status for finding in steps.steps(CPU, "fp32")] == [*["pass", *wrong] * 2, *wrong]


def test_without_tf32_convolutions_have_none_either_and_afterwards_it_is_as_before() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    for tf32 in (False, True):
        with full_precision(tf32=tf32):
            assert torch.backends.cudnn.allow_tf32 == tf32
            assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


@pytest.mark.parametrize("wrong", ["a row later", "one element", "none"])
def test_a_dropout_mask_that_is_another_one_on_the_device_fails(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    right, calls = layers.keep_mask, iter(range(2))

    def of_the_device(rows: BatchRows, site: int, places: torch.Tensor, *given: Any) -> torch.Tensor:
        if next(calls) or wrong == "none":  # the second is the processor's
            return right(rows, site, places, *given)
        if wrong == "a row later":
            return right(rows, site, places + places.shape[1], *given)
        mask = right(rows, site, places, *given)
        mask[-1, -1, -1].logical_not_()
        return mask

    monkeypatch.setattr(layers, "keep_mask", of_the_device)
    found = layers.dropout(CPU)
    assert found.status == ("pass" if wrong == "none" else "fail")
    assert (found.figure == 1) == (wrong == "one element")


@pytest.mark.weekly
@pytest.mark.slow
def test_layers_in_bf16_are_as_far_off_as_pytorchs_own_and_one_off_by_a_hundredth_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert {finding.status for finding in layers.layers(CPU, "bf16")} == {"pass", "told"}
    exact = matmul.forward
    monkeypatch.setattr(matmul, "forward", lambda *operands: exact(*operands) * 1.01)
    monkeypatch.setattr(layers, "KERNELS", layers.KERNELS[:1])
    failed = {finding.name for finding in layers.layers(CPU, "bf16") if finding.status == "fail"}
    assert failed == {"linear layer, all modes, bf16"}


def test_a_step_that_is_another_one_the_second_time_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps.repeated(steps.CASE, CPU, "bf16").status == "pass"
    exact, calls = matmul.weight_gradient, iter(range(1000))

    def now_and_then(out: torch.Tensor, *operands: object, **how: object) -> None:
        exact(out, *operands, **how)  # type: ignore[arg-type]
        out.view(-1)[0] += next(calls) * 1e-3

    monkeypatch.setattr(matmul, "weight_gradient", now_and_then)
    assert steps.repeated(steps.CASE, CPU, "bf16").status == "fail"


BIAS, WEIGHT, NORM = "blocks.1.feed_forward.fc2.bias", "blocks.0.attention.qkv.weight", "blocks.1.norm1.bias"


@pytest.fixture(scope="module")
def bf16() -> list[tuple[steps.StepResult, steps.StepResult, steps.StepResult]]:
    """The engine's steps of GPT in bf16, plain PyTorch's and the exact ones, by seed."""
    case = replace(steps.CASE, model=steps.MODELS[0])
    return [
        (steps.engines(one, CPU, "bf16"), steps.plain(one, CPU), steps.exact(one))
        for one in (replace(case, seed=seed) for seed in rounding.SEEDS)
    ]


Runs = list[tuple[steps.StepResult, steps.StepResult, steps.StepResult]]


@pytest.mark.slow
def test_a_step_in_bf16_is_as_far_off_as_pytorchs_own(bf16: Runs) -> None:
    found = steps.judged("it", bf16)
    assert found.status == "pass", found.sentence
    assert found.figure == pytest.approx(1.0, abs=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "factor"),
    [
        pytest.param(BIAS, 2.0, id="a bias counted twice"),
        pytest.param(WEIGHT, 0.5, id="the share of one of two ranks left out"),
        *(pytest.param(name, 1.03, id=f"{name} wrong by 3 %") for name in (BIAS, WEIGHT, NORM)),
        pytest.param(NORM, 0.97, id=f"{NORM} short of 3 %"),
    ],
)
def test_a_gradient_that_is_wrong_in_bf16_fails(bf16: Runs, name: str, factor: float) -> None:
    """NORM's rounds worst of all."""
    wrong = [
        (ours._replace(gradients={**ours.gradients, name: ours.gradients[name] * factor}), theirs, exact)
        for ours, theirs, exact in bf16
    ]
    found = steps.judged("it", wrong)
    assert (found.status, found.sentence.count(f"gradient of {name};")) == ("fail", 1), found.sentence


@pytest.mark.slow
def test_a_loss_that_is_wrong_in_bf16_or_a_gradient_that_is_missing_fails(bf16: Runs) -> None:
    wrong = [(ours._replace(loss=ours.loss * 1.001), theirs, exact) for ours, theirs, exact in bf16]
    assert steps.judged("it", wrong).status == "fail"
    lacking = [(ours._replace(gradients={}), theirs, exact) for ours, theirs, exact in bf16]
    assert steps.judged("it", lacking).status == "fail"


def test_what_is_no_number_or_has_another_shape_fails() -> None:
    ones = torch.ones(3, dtype=torch.float64)
    for measure in (rounding.error, rounding.distance):
        assert measure(ones, ones) == pytest.approx(0)
        assert measure(ones * float("nan"), ones) == float("inf")
        assert measure(ones[:2], ones) == float("inf")
