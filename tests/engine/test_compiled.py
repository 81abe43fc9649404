"""What Inductor makes of the layers' functions, by its compiler for processors: the same numbers in as few passes as a
GPU is to make of the same source.
"""

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from real_ranks import run_processes
from torch import Tensor

from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.layers import loss, norm
from engine.layers.compiled import Compiled

ROWS, COLUMNS = 512, 2048


class Case(NamedTuple):
    """A function with its arguments, and the bytes that it moves for each element of the first one, in bf16."""

    function: Compiled[..., Any]
    given: tuple[Any, ...]
    bytes: float


class Seen(NamedTuple):
    """worst: error by what rounding explains, which is at most 1."""

    worst: float
    bytes: float


def cases() -> dict[str, Case]:
    """Of which the plain forms move 8 to 32 bytes."""
    drawing = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=drawing)

    x_MH, g_MH = drawn(ROWS, COLUMNS).bfloat16(), drawn(ROWS, COLUMNS).bfloat16()
    weight_H, bias_H, mean_M1, rstd_M1 = drawn(COLUMNS), drawn(COLUMNS), drawn(ROWS, 1), drawn(ROWS, 1).abs() + 0.5
    columns_M1 = torch.randint(COLUMNS, (ROWS, 1), generator=drawing)
    highest_M1 = x_MH.amax(1, keepdim=True).float()
    shares_2M, of_layer = drawn(2, ROWS), (x_MH, mean_M1, rstd_M1, weight_H)
    return {
        "loss and its gradient": Case(loss.of_whole_rows, (x_MH, columns_M1, 8.0), 2 + 4),
        "sums of split rows": Case(loss.of_split_rows, (x_MH, columns_M1, highest_M1), 2),
        "gradient of split rows": Case(loss.to_gradient, (x_MH, highest_M1, rstd_M1, columns_M1, mean_M1), 4),
        "moments": Case(norm.moments, (x_MH,), 2),
        "normalised": Case(norm.normalised, (*of_layer, bias_H), 4),
        "shares of a norm's gradient": Case(norm.norm_shares, (g_MH, *of_layer), 4 + 4),
        "gradient of a norm": Case(norm.norm_gradient, (g_MH, *of_layer, shares_2M, COLUMNS), 6),
        "gradient of an RMSNorm": Case(norm.rms_gradient, (g_MH, x_MH, rstd_M1, weight_H, shares_2M[0], COLUMNS), 6),
    }


def compiled(_: Comm, cache: str) -> dict[str, Seen]:
    """By name. cache: a folder for what the compiler makes."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    torch._logging.set_logs(inductor_metrics=True)  # without which it counts no bytes
    from torch._inductor import metrics

    found = {}
    for name, (function, given, _) in cases().items():
        metrics.reset()
        ours, exact = given_as(given), given_as(given, torch.float64)
        results, wanted = tensors(function.fused(*ours), ours), tensors(function.plain(*exact), exact)
        worst = max(error(*pair) for pair in zip(results, wanted, strict=True))
        found[name] = Seen(worst, metrics.num_bytes_accessed / given[0].numel())
    return found


def given_as(given: Sequence[Any], dtype: torch.dtype | None = None) -> list[Any]:
    """Copies, of which those of real numbers may be of another dtype."""
    copies = []
    for one in given:
        real = isinstance(one, Tensor) and one.is_floating_point()
        copies.append(one.to(dtype or one.dtype, copy=True) if real else one)
    return copies


def tensors(result: Any, given: Sequence[Any]) -> list[Tensor]:
    """What it gives back, and what it may have written to."""
    back = result if isinstance(result, tuple) else (result,)
    return [one for one in (*back, *given) if isinstance(one, Tensor) and one.is_floating_point()]


def error(found: Tensor, exact: Tensor) -> float:
    """The worst, by the rounding of the result and of sums in fp32."""
    rounding = torch.finfo(found.dtype).eps / 2 + COLUMNS**0.5 * torch.finfo(torch.float32).eps
    size = exact.abs().clamp(min=float(exact.abs().mean()))
    return float(((found - exact).abs() / (rounding * size)).nan_to_num(math.inf).max())


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    (found,) = run_processes(Grid(), compiled, str(tmp_path_factory.mktemp("compiled")))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", cases())
def test_a_compiled_function_has_the_same_numbers_in_few_passes(name: str, seen: dict[str, Seen]) -> None:
    assert seen[name].worst <= 1
    assert seen[name].bytes <= cases()[name].bytes + 0.1


def test_on_a_processor_it_runs_as_it_is_written() -> None:
    def written(x: Tensor) -> Tensor:
        return x + 1

    def never(x: Tensor) -> Tensor:
        raise AssertionError

    assert Compiled(written, never)(torch.zeros(1)) == 1
