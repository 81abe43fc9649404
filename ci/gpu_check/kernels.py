"""Does PyTorch take a fused kernel for attention, and are the compiled functions right, and faster?"""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from engine.grid import SPLITTING_FEATURES, Grid
from engine.layers import attention, elementwise, group_norm, loss, norm_parts
from engine.layers.compiled import Compiled, compiles
from engine.measure.gemm import sample
from engine.placement import Constant, Placement
from engine.result import gate
from engine.result.gate import over_rounds
from engine.result.schema.gpu_check import Finding
from engine.training.optim import Rule, adamw
from gpu_check import native
from gpu_check.compiler import compiler
from gpu_check.findings import passes_if
from gpu_check.traffic import ROUNDS, InTurn, calls_of_each, rate, sets

HEADS, SEQUENCE, HEAD_SIZES = 16, 2048, (64, 80, 128)
SHAPE = {"cpu": (512, 2048), "cuda": (8192, 8192)}
"""The functions' arguments have so many rows and columns."""


class Call(NamedTuple):
    """A function with its arguments.

    num_bytes: what it moves for each element of the first argument, in bf16. Caches don't count: a kernel that reads a
    row again, as that of the loss, still has its 16 KB there. roundings: how many the plain form has on the way
    to a result. rival: what would run in its place, where that isn't the plain form.
    """

    function: Compiled[..., Any]
    given: tuple[Any, ...]
    num_bytes: float
    roundings: int = 1
    rival: native.Rival | None = None


def cases(device: torch.device) -> dict[str, Call]:
    """Return all compiled functions by name; their plain forms move 8 to 50 bytes an element."""
    rows, columns = SHAPE[device.type]
    drawing = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=drawing, device=device)

    x_MH, g_MH = drawn(rows, columns).bfloat16(), drawn(rows, columns).bfloat16()
    weight_H, bias_H = drawn(columns), drawn(columns)
    variance_M1, mean_M1 = torch.var_mean(x_MH.float(), dim=1, correction=0, keepdim=True)
    rstd_M1, by_rms_M1 = ((square_M1 + 1e-5).rsqrt() for square_M1 in (variance_M1, variance_M1 + mean_M1**2))
    columns_M1 = torch.randint(columns, (rows, 1), generator=drawing, device=device)
    highest_M1 = x_MH.amax(1, keepdim=True).float()
    dsum_MH, shares_2M = drawn(rows, columns).bfloat16(), drawn(2, rows)
    few_MH, added_MH = ((16 * drawn(rows, columns)).round().clamp(-64, 64).bfloat16() / 16 for _ in range(2))
    shares_M, of_layer, of_rms = shares_2M[0], (x_MH, mean_M1, rstd_M1, weight_H), (x_MH, by_rms_M1, weight_H)
    heads_BNSD, rotation_2SP = x_MH.view(2, -1, columns // HEAD_SIZES[0], HEAD_SIZES[0]), drawn(2, columns // 64, 32)
    g_MF, opened_MF = (half.contiguous() for half in g_MH.chunk(2, dim=1))
    x_BCHW, g_BCHW = (of_MH.view(8, -1, 32, columns // 32) for of_MH in (x_MH, g_MH))
    norm = Placement("norm.weight", (3 * rows // 8,), (SPLITTING_FEATURES[1],), False, Constant(1.0))
    groups = group_norm.Groups.for_rank(norm, Grid().sized({SPLITTING_FEATURES[1]: 3}), 0, 32, device, torch.float32)
    own_2BG, of_channels_2BC, squares_2M = drawn(2, 8, 32).square(), drawn(2, 8, rows // 8), drawn(2, rows).square()
    shared = groups.shared_S
    rule = Rule(number=10, learning_rate=1e-3, beta1=0.9, beta2=0.95, decay=0.1, eps=1e-8)
    step = torch.ones((), device=device), torch.tensor(rule.factors(), device=device), rule
    W_MH = drawn(rows, columns)
    of_weights = W_MH, g_MH.float(), x_MH.float(), drawn(rows, columns).square(), W_MH.bfloat16()
    return {
        "loss and its gradient": Call(loss.of_whole_rows, (x_MH, columns_M1, 8.0), 4),
        "sums of split rows": Call(loss.of_split_rows, (x_MH, columns_M1, highest_M1), 2),
        "gradient of split rows": Call(loss.to_gradient, (x_MH, highest_M1, rstd_M1, columns_M1, mean_M1), 4),
        "sum and its LayerNorm": Call(
            norm_parts.layer_norm,
            (few_MH, added_MH, weight_H, bias_H, 1e-5),
            8,
            rival=native.sum_and(native.layer_norm, weight_H, bias_H),
        ),
        "gradient of a LayerNorm": Call(
            norm_parts.layer_norm_gradients,
            (g_MH, *of_layer, dsum_MH),
            8 + 4,
            rival=native.gradients_of(native.layer_norm, weight_H, bias_H),
        ),
        "sum and its RMSNorm": Call(
            norm_parts.rms_norm, (few_MH, added_MH, weight_H, 1e-5), 8, rival=native.sum_and(native.rms_norm, weight_H)
        ),
        "gradient of an RMSNorm": Call(
            norm_parts.rms_norm_gradients,
            (g_MH, *of_rms, dsum_MH),
            8 + 4,
            rival=native.gradients_of(native.rms_norm, weight_H),
        ),
        "sum and its moments": Call(norm_parts.moments, (few_MH, added_MH), 4 + 6),
        "normalised": Call(norm_parts.normalised, (*of_layer, bias_H), 4),
        "shares of a norm's gradient": Call(norm_parts.norm_shares, (g_MH, *of_layer), 4 + 4),
        "moments of groups": Call(group_norm.own_moments, (x_BCHW, groups), 2),
        "GroupNorm of shared groups": Call(
            group_norm.group_norm, (x_BCHW, own_2BG, own_2BG[None, ..., shared], groups, *of_channels_2BC, 1e-5), 4
        ),
        "sums of a GroupNorm's gradient": Call(
            group_norm.gradient_sums, (g_BCHW, x_BCHW, squares_2M, groups, of_channels_2BC[0], 1e-5), 4
        ),
        "gradient of a GroupNorm": Call(
            group_norm.group_norm_gradient,
            (g_BCHW, x_BCHW, squares_2M, own_2BG, own_2BG[..., shared], groups, of_channels_2BC[0], columns, 1e-5),
            6,
        ),
        "gradient from shares": Call(norm_parts.norm_gradient, (g_MH, *of_layer, shares_2M, columns, dsum_MH), 8),
        "gradient from its share": Call(norm_parts.rms_gradient, (g_MH, *of_rms, shares_M, columns, dsum_MH), 8),
        "bias and GELU": Call(elementwise.bias_gelu, (x_MH, bias_H.bfloat16(), "none"), 4, roundings=2),
        "gradient of bias and GELU": Call(
            elementwise.bias_gelu_gradient, (x_MH, bias_H.bfloat16(), g_MH, "none"), 6, roundings=3
        ),
        "rotation": Call(elementwise.turn, (heads_BNSD, rotation_2SP), 4),
        "SwiGLU": Call(elementwise.swiglu, (x_MH,), 4, roundings=2),
        "gradient of SwiGLU": Call(elementwise.swiglu_gradient, (g_MF, x_MH, opened_MF), 12, roundings=2),
        "AdamW": Call(adamw, (*of_weights, *step), 16 + 12 + 2),
    }


def given_as(given: Sequence[Any], dtype: torch.dtype | None = None) -> list[Any]:
    """Return copies of arguments; those of real numbers may get another dtype."""
    copies: list[Any] = []
    for one in given:
        if isinstance(one, group_norm.Groups):
            copies.append(group_norm.Groups(*given_as(one, dtype)))
            continue
        real = isinstance(one, Tensor) and one.is_floating_point()
        copies.append(one.to(dtype or one.dtype, copy=True) if real else one)
    return copies


def worst_error(found: Any, exact: Any, given: Sequence[Any], given_exact: Sequence[Any]) -> float:
    """Give the worst error of what a function returns or may have written to, by what roundings explain: at most 1."""
    pairs = zip(_tensors(found, given), _tensors(exact, given_exact), strict=True)
    return max(_error(*pair) for pair in pairs)


def _tensors(result: Any, given: Sequence[Any]) -> list[Tensor]:
    back = result if isinstance(result, tuple) else (result,)
    return [one for one in (*back, *given) if isinstance(one, Tensor) and one.is_floating_point()]


def _error(found: Tensor, exact: Tensor) -> float:
    """Divide the largest error by the rounding of the result and of sums in fp32, which adds up like a random walk."""
    longest = max(max(shape) for shape in SHAPE.values())
    rounding = torch.finfo(found.dtype).eps / 2 + longest**0.5 * torch.finfo(torch.float32).eps
    size = exact.abs().clamp(min=float(exact.abs().mean()))
    return float(((found - exact).abs() / (rounding * size)).nan_to_num(math.inf).max())


def kernels(device: torch.device) -> Iterator[Finding]:
    """Check attention of all head sizes, then every compiled function.

    A processor runs them as they are written. So does a GPU for which nothing can be compiled, where comparing a plain
    form with itself would say nothing.
    """
    for size in HEAD_SIZES:
        for grouped in (False, True):
            yield _attention(size, device, grouped=grouped)
    uncompiled = device.type == "cuda" and not compiles(device)
    if uncompiled:
        yield Finding(name="compiled functions", status="not run", sentence=compiler(device).sentence)
    for name, case in cases(device).items():
        if uncompiled:
            yield _rate(f"{name}, uncompiled", case, device)
            continue
        yield _right(name, case)
        if device.type == "cuda":
            yield _faster(name, case, device)
        yield _rate(name, case, device)


def _attention(size: int, device: torch.device, *, grouped: bool) -> Finding:
    kv_heads = HEADS // 4 if grouped else HEADS
    taken = attention.backend(HEADS, kv_heads, size, SEQUENCE, torch.bfloat16, device, causal=True)
    fused = taken not in (None, attention.AttentionKernel.MATH)
    name = f"attention of heads of {size}{', grouped' if grouped else ''}"
    return passes_if(fused, name, "a kernel that keeps no scores", str(taken or "PyTorch has none"))


def _right(name: str, case: Call) -> Finding:
    ours, exact = given_as(case.given), given_as(case.given, torch.float64)
    worst = worst_error(case.function(*ours), case.function.plain(*exact), ours, exact) / case.roundings
    return passes_if(worst <= 1, f"{name}, compiled", "at most 1, of what roundings explain", figure=worst)


def _faster(name: str, case: Call, device: torch.device) -> Finding:
    """Time a function in turns with its plain form or rival, in one process."""
    ours = InTurn([partial(case.function, *given) for given in _turn(case, device)])
    rival = case.rival or partial(partial, case.function.plain)
    theirs = InTurn([rival(*given) for given in _turn(case, device)])
    calls = calls_of_each([ours, theirs], device)
    rounds = [(sample(ours, calls, device), sample(theirs, calls, device)) for _ in range(ROUNDS)]
    return by_plain(name, rounds)


def by_plain(name: str, rounds: Sequence[tuple[float, float]]) -> Finding:
    """Judge whether a function is faster. rounds: its seconds, and those of its plain form or its rival."""
    ratios = over_rounds([ours / plain for ours, plain in rounds], 1)
    return Finding(
        name=f"{name}, compiled by plain",
        status=gate.at_most(ratios, 1.0),
        figure=ratios.high,
        want="at most 1 over all of its interval",
        sentence=f"{ratios.low:.3f} to {ratios.high:.3f}",
    )


def _rate(name: str, case: Call, device: torch.device) -> Finding:
    call = InTurn([partial(case.function, *given) for given in _turn(case, device)])
    return rate(name, call, case.num_bytes * case.given[0].numel(), device)


def _turn(case: Call, device: torch.device) -> list[list[Any]]:
    """As many copies of its arguments as make up a turn (traffic.py)."""
    num_bytes = sum(one.nbytes for one in case.given if isinstance(one, Tensor))
    return [given_as(case.given) for _ in range(sets(num_bytes, device))]
