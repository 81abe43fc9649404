"""What ci/gpu looks at in the ways of a training step: each fault that it must find is planted."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from engine.layers import matmul
from engine.models import serial
from engine.overlap.reduction import Fill, Reduction
from engine.overlap.weight import ShardedWeight
from gpu_check import rounding, steps
from gpu_check.ways import WAYS

CPU = torch.device("cpu")
COARSE = torch.float8_e5m2


def _counted_twice() -> AbstractContextManager[object]:
    """Add a second micro-batch twice."""
    right = Reduction.accumulate

    def accumulate(self: Reduction, weight: ShardedWeight, fill: Fill, dtype: torch.dtype) -> None:
        again = self._gradients[weight].state.name == "PARTIAL"
        for _ in range(1 + again):
            right(self, weight, fill, dtype)

    return patch.object(Reduction, "accumulate", accumulate)


def _recomputed_otherwise() -> AbstractContextManager[object]:
    """Change a block's inputs by a tenth."""
    right = serial.checkpoint

    def checkpoint(block: Callable[..., Tensor], x: Tensor, *others: object, **how: object) -> Tensor:
        runs = iter((1.0, 1.1))
        return right(lambda x, *others: block(x * next(runs), *others), x, *others, **how)

    return patch.object(serial, "checkpoint", checkpoint)


def _wrong_by_columns() -> AbstractContextManager[object]:
    """The gradient of a weight that is stored so, in a hundredth."""
    right = matmul.weight_gradient

    def weight_gradient(out_NK: Tensor, *operands: Any, **how: Any) -> None:
        right(out_NK, *operands, **how)
        if not out_NK.is_contiguous():
            out_NK *= 1.01

    return patch.object(matmul, "weight_gradient", weight_gradient)


def _summed_coarsely() -> AbstractContextManager[object]:
    """Where sums in fp32 are asked for."""
    right = Reduction.accumulate

    def accumulate(self: Reduction, weight: ShardedWeight, fill: Fill, dtype: torch.dtype) -> None:
        def coarse(out: Tensor, *, add: bool) -> None:
            fill(out, add=add)
            out.copy_(out.to(COARSE))

        right(self, weight, coarse if self._scattered == torch.float32 else fill, dtype)

    return patch.object(Reduction, "accumulate", accumulate)


FAULTS = {
    " in micro-batches": _counted_twice,
    ", recomputed": _recomputed_otherwise,
    ", weights by columns": _wrong_by_columns,
}
AT_ONCE = ", all of these at once"


@pytest.mark.parametrize("way", FAULTS)
def test_a_step_that_is_wrong_in_one_of_its_ways_fails_in_that_one_and_in_all_at_once(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(steps, "MODELS", steps.MODELS[:1])
    with FAULTS[way]():
        failed = {finding.name for finding in steps.steps(CPU, "fp32") if finding.status == "fail"}
    assert failed == {f"training step of GPT{words}, fp32" for words in (way, AT_ONCE)}


def test_sums_in_fp32_that_lose_digits_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MODELS", steps.MODELS[:1])
    monkeypatch.setattr(rounding, "SEEDS", range(2))
    monkeypatch.setattr(rounding, "LOOKS", 1)
    with _summed_coarsely():
        found = {finding.name: finding.status for finding in steps.steps(CPU, "bf16")}
    failed = {name for name, status in found.items() if status == "fail"}
    assert failed == {f"training step of GPT{words}, bf16" for words in (", sums in fp32", AT_ONCE)}
    assert len(found) == 1 + len(WAYS)


@pytest.mark.parametrize(
    ("times", "scatter", "expected"), [(1.0, 0.3, "pass"), (1.25, 0.3, "undecided"), (2.0, 0.3, "fail")]
)
def test_what_scatters_over_seeds_is_asked_of_more_of_them(times: float, scatter: float, expected: str) -> None:
    """times: how many times as far off as PyTorch's own, in the middle of alternating seeds."""
    asked: list[int] = []

    def run(seed: int) -> steps.Steps:
        asked.append(seed)
        wanted, off = torch.ones(8, dtype=torch.float64), times * math.exp(scatter * (-1) ** seed)
        ours, plain = wanted * (1 + 0.01 * off), wanted * 1.01
        return tuple(steps.StepResult(1.0, {"w": one}, {"w": one}) for one in (ours, plain, wanted))  # type: ignore[return-value]

    assert steps.decided("it", run).status == expected
    assert asked == list(range(48 if expected == "undecided" else len(asked)))
    assert len(asked) > len(rounding.SEEDS)
