"""Single layers of the engine on the device are compared with PyTorch's own in float64 on the processor.

Inputs are numbers of the format that is checked, so that only what a layer itself rounds makes a difference.

In fp32 BOUND limits the largest difference from the float64 result by the largest value of that, and so for each
gradient; an eps is 2^-23. A layer sums a thousand products, whose roundings add up like a random walk to a few eps;
TF32, which keeps ten bits of each factor, is some hundred eps off and has to be noticed. In bf16 each result and each
gradient is held to what PyTorch's own layer in bf16 on the same device is off (rounding.py).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from engine.batch import CHUNK_BYTES
from engine.comm.funnel import Comm
from engine.grid import SPLITTING_FEATURES, Grid
from engine.layers.conv2d import Conv2d
from engine.layers.counter_random import BatchRows
from engine.layers.dropout import keep_mask
from engine.layers.embedding import PositionEmbedding, TokenEmbedding
from engine.layers.group_norm import GroupNorm
from engine.layers.linear import Linear
from engine.layers.loss import CrossEntropy
from engine.layers.matmul import Kernels, Mode, widening
from engine.layers.norm import LayerNorm, RMSNorm
from engine.overlap.flags import Overlap
from engine.overlap.schedule import WeightSchedule
from engine.overlap.weight import ShardedWeight
from engine.placement import Constant, Gaussian, Placement
from engine.precision import Precision, at_least_fp32
from engine.result.schema.gpu_check import Finding
from gpu_check import rounding
from gpu_check.findings import passes_if, reported
from gpu_check.rounding import error, times_as_far

BOUND = 64 * 2.0**-23
ROWS, IN, OUT, TOKENS = 512, 256, 384, 1024
EPS = 1e-5
KERNELS = [Kernels(stored, *3 * (mode,)) for stored, mode in product((False, True), (None, Mode.NN, Mode.NT, Mode.TN))]
HEADS, POSITIONS, HEAD_SIZE = 8, 128, 64
IMAGES, CHANNELS, SIDE, GROUPS = 2, 32, 16, 8


class Compared(NamedTuple):
    """A layer's result and gradients: ours, PyTorch's own in the same format, and exact ones."""

    ours: Sequence[Tensor]
    plain: Sequence[Tensor]
    exact: Sequence[Tensor]


class Bench:
    """Draws operands, and runs a layer on the device as a step would. name: the number format."""

    def __init__(self, device: torch.device, name: str, seed: int) -> None:
        self.device, self.precision = device, Precision.parse(name)
        self.comm = Comm(Grid(), device=device)
        self._generator = torch.Generator().manual_seed(seed)

    def drawn(self, *size: int) -> Tensor:
        """Draw normal numbers of the format, in float64 on the processor."""
        return torch.randn(size, generator=self._generator).to(self.precision.compute).double()

    def tokens(self, *size: int) -> Tensor:
        """Whole numbers below TOKENS, on the processor."""
        return torch.randint(0, TOKENS, size, generator=self._generator)

    def input(self, exact: Tensor) -> Tensor:
        """Return an activation on the device."""
        return exact.to(self.device, self.precision.compute).requires_grad_()

    def parameter(self, exact: Tensor) -> nn.Parameter:
        return nn.Parameter(exact.to(self.device, self.precision.master))

    def weight(self, exact: Tensor, *, column_major: bool = False) -> ShardedWeight:
        """Return a matrix [n, k], or a kernel [n, k, height, width], as a layer holds it."""
        shape = tuple(exact.shape)
        split = (*SPLITTING_FEATURES, *[None] * (len(shape) - 2))
        placement = Placement("weight", shape, split, True, Gaussian(1.0), column_major=column_major)
        stored = (exact.t() if column_major else exact).contiguous().flatten()
        return ShardedWeight(placement, self.parameter(stored), shape)

    def step(
        self,
        build: Callable[[WeightSchedule], Callable[[], Tensor]],
        weight: ShardedWeight,
        replicated: Sequence[nn.Parameter],
        gradient: Tensor,
    ) -> Tensor:
        """Run a layer with a weight forward and backward; returns its result, while gradients are in their .grad."""
        schedule = self.schedule([weight], replicated)
        forward = build(schedule)
        schedule.start_step()
        result = forward()
        result.backward(gradient.to(result.device, result.dtype))
        schedule.finish_step()
        return result.detach()

    def schedule(self, weights: Sequence[ShardedWeight], replicated: Sequence[nn.Parameter]) -> WeightSchedule:
        """Return the schedule of a layer's parameters, without overlap."""
        return WeightSchedule(self.comm, weights, replicated, self.precision, Overlap())

    def compared(
        self, ours: Sequence[Tensor], function: Callable[..., Tensor], gradient: Tensor, *inputs: Tensor
    ) -> Compared:
        return Compared(ours, *self.wanted(function, gradient, *inputs))

    def wanted(
        self, function: Callable[..., Tensor], gradient: Tensor, *inputs: Tensor
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the function's result and gradients in the format on the device, and in float64."""
        plain = _taken(function, gradient, [self.input(x.detach()) for x in inputs])
        return plain, _taken(function, gradient, [x.clone().requires_grad_() for x in inputs])


def _gradients(leaves: Sequence[Tensor]) -> list[Tensor]:
    return [leaf.grad for leaf in leaves if leaf.grad is not None]


def _taken(function: Callable[..., Tensor], gradient: Tensor, leaves: Sequence[Tensor]) -> list[Tensor]:
    result = function(*leaves)
    result.backward(gradient.to(result.device, result.dtype))
    return [result.detach(), *_gradients(leaves)]


def linear(bench: Bench) -> Iterator[Compared]:
    """Give the linear layer in every mode, with its weight stored either way, with a bias and without."""
    x_MK, W_NK, b_N, g_MN = bench.drawn(ROWS, IN), bench.drawn(OUT, IN), bench.drawn(OUT), bench.drawn(ROWS, OUT)
    wanted = {biased: bench.wanted(F.linear, g_MN, x_MK, W_NK, *([b_N] if biased else [])) for biased in (True, False)}
    for kernels, biased in product(KERNELS, (True, False)):
        weight = bench.weight(W_NK, column_major=kernels.column_major)
        bias = bench.parameter(b_N) if biased else None
        biases, x = [bias] if bias is not None else [], bench.input(x_MK)
        found = bench.step(
            lambda schedule, w=weight, b=bias, k=kernels, x=x: lambda: Linear(bench.comm, schedule, w, b, k)(x),  # type: ignore[misc]
            weight,
            biases,
            g_MN,
        )
        assert weight.shard.grad is not None
        yield Compared([found, *_gradients([x]), weight.tile(weight.shard.grad), *_gradients(biases)], *wanted[biased])


def convolution(bench: Bench) -> Iterator[Compared]:
    x_BKHW, W_NKHW, b_N = bench.drawn(IMAGES, CHANNELS, SIDE, SIDE), bench.drawn(48, CHANNELS, 3, 3), bench.drawn(48)
    weight, bias, x, g_BNHW = (
        bench.weight(W_NKHW),
        bench.parameter(b_N),
        bench.input(x_BKHW),
        bench.drawn(IMAGES, 48, SIDE, SIDE),
    )
    found = bench.step(
        lambda schedule: lambda: Conv2d(bench.comm, schedule, weight, bias, padding=(1, 1))(x), weight, [bias], g_BNHW
    )
    assert weight.shard.grad is not None
    ours = [found, *_gradients([x]), weight.tile(weight.shard.grad), *_gradients([bias])]
    yield bench.compared(ours, partial(F.conv2d, padding=1), g_BNHW, x_BKHW, W_NKHW, b_N)


def group_norm(bench: Bench) -> Iterator[Compared]:
    x_BCHW, g_BCHW = (bench.drawn(IMAGES, CHANNELS, SIDE, SIDE) for _ in range(2))
    w_C, b_C = bench.drawn(CHANNELS), bench.drawn(CHANNELS)
    weight, bias = bench.parameter(w_C), bench.parameter(b_C)
    placement = Placement("weight", (CHANNELS,), (SPLITTING_FEATURES[0],), False, Constant(1.0))
    norm = GroupNorm(bench.comm, bench.schedule([], [weight, bias]), placement, weight, bias, GROUPS, EPS)
    ours = _taken(lambda x, *_: norm(x), g_BCHW, [bench.input(x_BCHW), weight, bias])
    yield bench.compared(ours, lambda x, w, b: F.group_norm(x, GROUPS, w, b, EPS), g_BCHW, x_BCHW, w_C, b_C)


def token_embedding(bench: Bench) -> Iterator[Compared]:
    table_VH, tokens_M, g_MH = bench.drawn(TOKENS, IN), bench.tokens(ROWS), bench.drawn(ROWS, IN)
    weight, tokens = bench.weight(table_VH), tokens_M.to(bench.device)
    found = bench.step(lambda schedule: lambda: TokenEmbedding(bench.comm, schedule, weight)(tokens), weight, [], g_MH)
    assert weight.shard.grad is not None
    ours = [found, weight.tile(weight.shard.grad)]
    yield bench.compared(ours, lambda table: F.embedding(tokens_M.to(table.device), table), g_MH, table_VH)


def position_embedding(bench: Bench) -> Iterator[Compared]:
    table_SH, g_SH = bench.drawn(POSITIONS, IN), bench.drawn(POSITIONS, IN)
    positions = torch.arange(POSITIONS, device=bench.device)

    def embedded(table: nn.Parameter) -> Tensor:
        return PositionEmbedding(table, bench.precision.compute)(positions)

    yield bench.compared(_taken(embedded, g_SH, [bench.parameter(table_SH)]), torch.clone, g_SH, table_SH)


def layer_norm(bench: Bench) -> Iterator[Compared]:
    x_MH, w_H, b_H, g_MH = bench.drawn(ROWS, IN), bench.drawn(IN), bench.drawn(IN), bench.drawn(ROWS, IN)
    weight, bias = bench.parameter(w_H), bench.parameter(b_H)
    norm = LayerNorm(bench.comm, SPLITTING_FEATURES[1], bench.schedule([], [weight, bias]), weight, bias, EPS)
    ours = _taken(lambda x, *_: norm(x), g_MH, [bench.input(x_MH), weight, bias])
    yield bench.compared(ours, lambda x, w, b: F.layer_norm(x, (IN,), w, b, EPS), g_MH, x_MH, w_H, b_H)


def rms_norm(bench: Bench) -> Iterator[Compared]:
    x_MH, w_H, g_MH = bench.drawn(ROWS, IN), bench.drawn(IN), bench.drawn(ROWS, IN)
    weight = bench.parameter(w_H)
    norm = RMSNorm(bench.comm, SPLITTING_FEATURES[1], bench.schedule([], [weight]), weight, EPS)
    ours = _taken(lambda x, _: norm(x), g_MH, [bench.input(x_MH), weight])
    yield bench.compared(ours, lambda x, w: F.rms_norm(x, (IN,), w, EPS), g_MH, x_MH, w_H)


def cross_entropy(bench: Bench) -> Iterator[Compared]:
    """Logits far apart, so that a softmax has large and small values; in four chunks, as those of a large network."""
    logits_MV, targets_M, one = 4 * bench.drawn(ROWS, TOKENS), bench.tokens(ROWS), torch.tensor(1.0)
    loss, targets = CrossEntropy(bench.comm, SPLITTING_FEATURES[0], TOKENS), targets_M.to(bench.device)
    with patch.dict(CHUNK_BYTES, {bench.device.type: ROWS * TOKENS}):
        ours = _taken(lambda x: loss(x.clone(), targets, ROWS), one, [bench.input(logits_MV)])
    plain: Callable[[Tensor], Tensor] = lambda x: F.cross_entropy(at_least_fp32(x), targets_M.to(x.device))  # noqa: E731
    yield bench.compared(ours, plain, one, logits_MV)


def attention(bench: Bench) -> Iterator[Compared]:
    """Attention as both networks call it: with as many heads of keys as of queries, and with fewer."""
    for keys in (HEADS, HEADS // 4):
        sizes = [(2, heads, POSITIONS, HEAD_SIZE) for heads in (HEADS, keys, keys, HEADS)]
        *qkv, gradient = [bench.drawn(*size) for size in sizes]
        grouped = keys < HEADS
        attend: Callable[..., Tensor] = partial(F.scaled_dot_product_attention, is_causal=True, enable_gqa=grouped)
        yield bench.compared(_taken(attend, gradient, [bench.input(x) for x in qkv]), attend, gradient, *qkv)


LAYERS: dict[str, Callable[[Bench], Iterator[Compared]]] = {
    "linear layer, all modes": linear,
    "convolution": convolution,
    "GroupNorm": group_norm,
    "token embedding": token_embedding,
    "position embedding": position_embedding,
    "LayerNorm": layer_norm,
    "RMSNorm": rms_norm,
    "cross-entropy": cross_entropy,
    "attention": attention,
}


def layers(device: torch.device, name: str) -> Iterator[Finding]:
    """Give a finding for each layer. name: the number format."""
    for layer, compared in LAYERS.items():
        seeds = rounding.SEEDS if name == "bf16" else range(1)
        runs = [list(compared(Bench(device, name, seed))) for seed in seeds]
        found = _by_plain(runs) if name == "bf16" else _by_bound(runs[0])
        yield found.model_copy(update={"name": f"{layer}, {name}"})
    precision = Precision.parse(name)
    if precision.compute != precision.master:
        way = widening(precision.compute, precision.master, device)
        how = "after the product, which rounds them" if way is None else f"by {way}"
        yield reported(f"weight gradients, {name}", f"summed in fp32 {how}")


def _by_bound(run: Sequence[Compared]) -> Finding:
    pairs = [pair for one in run for pair in zip(one.ours, one.exact, strict=True)]
    worst = max(error(ours, exact) for ours, exact in pairs)
    want = f"at most {BOUND:.2g} from float64"
    return passes_if(worst <= BOUND, "", want, f"{len(pairs)} results and gradients", figure=worst)


def _by_plain(runs: Sequence[Sequence[Compared]]) -> Finding:
    worst = rounding.worst(
        {
            f"{place}: {'result' if part == 0 else f'gradient {part}'}": times_as_far(*triple)
            for place, one in enumerate(run)
            for part, triple in enumerate(zip(*one, strict=True))
        }
        for run in runs
    )
    sentence = f"over {len(runs)} seeds the worst is {worst.name}"
    return Finding(name="", status=worst.outcome, figure=worst.times, want=rounding.WANT, sentence=sentence)


def dropout(device: torch.device) -> Finding:
    """Compare masks, of which not one element may differ, as they are hashes in whole numbers."""

    def mask(on: torch.device) -> Tensor:
        rows = BatchRows(3, 5, torch.arange(2**33, 2**33 + 8, device=on))
        return keep_mask(rows, 2, rows.places(POSITIONS), range(IN), 0.1).cpu()

    wrong = int((mask(device) != mask(torch.device("cpu"))).sum())
    want, of = "none differs from the processor's", f"of {8 * POSITIONS * IN}"
    return passes_if(not wrong, "dropout mask", want, of, figure=wrong, unit="elements")
