"""What ci/gpu looks at in initial values: each fault that it must find is planted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.parallel.initial import fill
from gpu_check import initial
from gpu_check.initial import initial_values

CPU = torch.device("cpu")


def a_little_off(part: torch.Tensor, *given: Any) -> torch.Tensor:
    return fill(part, *given).mul_(1 + 1e-6)


def elsewhere(part: torch.Tensor, placement: Any, offsets: tuple[int, ...], seed: int) -> torch.Tensor:
    """As if row numbers were cut to 20 bits."""
    return fill(part, placement, (offsets[0] % (1 << 20), *offsets[1:]), seed)


def test_initial_values_of_the_processor_pass_and_their_rate_is_told() -> None:
    values, rate = initial_values(CPU)
    assert (values.status, rate.status, rate.unit) == ("pass", "told", "elements/s")
    assert rate.figure is not None
    assert rate.figure > 0


@pytest.mark.parametrize("wrong", [a_little_off, elsewhere])
def test_other_values_on_the_device_fail(monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., torch.Tensor]) -> None:
    def of_the_device(part: torch.Tensor, *given: Any) -> torch.Tensor:
        return (wrong if part.dtype == torch.float32 else fill)(part, *given)

    monkeypatch.setattr(initial, "fill", of_the_device)
    assert next(iter(initial_values(CPU))).status == "fail"
