"""Bytes that one rank sends in a training step, from the shapes alone.

axonn-sc24 Eq. 1-5 give the linear layers: all-gather of k n / (Gx Gy Gz), reduce-scatter of k n / (Gx Gy), all-reduces
of m n / Gx and m k / Gy elements for the m rows of a rank. To that come norm statistics, embedding, loss, replicated
gradients, the data all-reduce of everything, and what activation checkpointing repeats. Of bf16, sums over 64 ranks or
more travel in fp32.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from math import ceil

from engine.batch import Batch
from engine.grid import Axis, Grid
from engine.models.architecture import Architecture
from engine.models.bert.config import BertConfig
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.models.vit.config import ViTConfig
from engine.placement import ALIGNED
from engine.tensor_mode import ALGORITHM_1, TensorMode


@dataclass
class Volume:
    """Calls and bytes by (kind, axis)."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, kind: str, axis: str, elements: float, *, size: int, times: int = 1) -> None:
        self.calls[kind, axis] += times
        self.num_bytes[kind, axis] += int(elements * size * times)

    def on(self, grid: Grid) -> "Volume":
        """Without what runs along axes of one rank."""
        active = {axis.value: grid[axis] > 1 for axis in Axis}
        calls, num_bytes = (
            Counter({key: n for key, n in of.items() if active[key[1]]}) for of in (self.calls, self.num_bytes)
        )
        return Volume(calls, num_bytes)


@dataclass(frozen=True)
class Blocks:
    """linears: (n, k) of a block's layers in order, which are normal and transposed by turns. norm_words: what a norm
    shares of each row, forward and backward: mean and M2, or the mean of squares alone. norm_last: whether a block ends
    with a norm.
    """

    linears: tuple[tuple[int, int], ...]
    norm_words: int
    norm_last: bool = False


def blocks(model: Architecture) -> Blocks:
    h = model.hidden
    if isinstance(model, LlamaConfig):
        kv = model.kv_heads * h // model.heads
        return Blocks(((h + 2 * kv, h), (h, h), (2 * model.ffn, h), (h, model.ffn)), 1)
    rms = isinstance(model, GPTConfig) and model.norm == "rmsnorm"
    wide = ((3 * h, h), (h, h), (4 * h, h), (h, 4 * h))
    return Blocks(wide, 1 if rms else 2, isinstance(model, BertConfig))


def closed_form(
    model: Architecture, batch: Batch, grid: Grid, *, precision: str, checkpoint: bool, mode: TensorMode = ALGORITHM_1
) -> Volume:
    """Count a step without cached gathers, its reported loss included. With split activations a sum scatters its rows,
    which are gathered before the next product. On a square blocks are broadcast and reduced (modes of SUMMA), and
    features of the stream lie along x.
    """
    volume, parts = Volume(), blocks(model)
    h, outputs, layers = model.hidden, model.outputs, model.layers
    compute = {"fp64": 8, "fp32": 4, "bf16": 2}[precision]
    wide = max(compute, 4)
    over_z, over_data = (wide if ranks >= 64 else compute for ranks in (grid.z, grid.data))
    share = batch.per_rank(grid)
    micro = batch.micro or share
    m, again = micro * model.sequence, 1 if checkpoint else 0
    x, y, z = grid.x, grid.y, grid.z
    statistics = "all_gather" if parts.norm_words == 2 else "all_reduce"
    split, square = mode.splits_rows, mode.square
    rows, features = ("y", x) if square else ("x", y)
    rows_stream, rows_inner = (y, y) if square else (x, y) if split else (1, 1)
    stream = "x" if square else "y"

    def weight(numel: int, times: int = 1, gathers: int = 1) -> None:
        part = numel // (x * y * z) if numel // (x * y) % z == 0 else ceil(numel / (x * y * z * ALIGNED)) * ALIGNED
        volume.add("all_gather", "z", part, size=compute, times=times * gathers)
        volume.add("reduce_scatter", "z", part * z, size=over_z, times=times)

    def norm(rows: int, forwards: int, backwards: int) -> None:
        volume.add(statistics, stream, parts.norm_words * rows / rows_stream, size=wide, times=forwards)
        volume.add("all_reduce", stream, parts.norm_words * rows / rows_stream, size=wide, times=backwards)

    def gathered(axis: str, elements: float, times: int = 1) -> None:
        """Gather elements on each rank in the end: the whole of an all-reduce's buffer."""
        if split:
            volume.add("all_gather", axis, elements / {"x": x, "y": y}[axis], size=compute, times=times)

    def summed(axis: str, elements: float, times: int = 1) -> None:
        volume.add("reduce_scatter" if split else "all_reduce", axis, elements, size=compute, times=times)

    def on_square(n: int, k: int, times: int = 1, forwards: int = 1) -> None:
        """Send what moves least of a layer, where the mode may choose, and its weight."""
        transposed = mode.by_size and n < k
        moved, own = m * (n if transposed else k) / (x * y), n * k / (x * y)
        through, onto = (0, 1) if transposed else (1, 0)
        volume.add("broadcast", "x", moved, size=compute, times=times * x * (through * forwards + onto + 1))
        volume.add("broadcast", "y", own, size=compute, times=times * x * (forwards + 1))
        volume.add("reduce", "x", moved, size=compute, times=times * x * (onto * forwards + through))
        volume.add("reduce", "y", own, size=compute, times=times * x)

    for _ in range(share // micro):
        for number, (n, k) in enumerate(parts.linears):
            weight(n * k, layers, 1 + again)
            normal = number % 2 == 0
            in_axis, out_axis, out_parts, in_parts = ("y", "x", x, y) if normal else ("x", "y", y, x)
            # The last all-reduce of a block is not repeated, unless something after it needs its result.
            last = number == len(parts.linears) - 1 and not parts.norm_last
            if square:
                on_square(n, k, layers, 1 + again)
                continue
            gathered(out_axis, m * k / in_parts, layers * (1 + again + mode.gathers_again))
            summed(in_axis, m * n / out_parts, layers * (1 if last else 1 + again))
            gathered(in_axis, m * n / out_parts, layers)
            summed(out_axis, m * k / in_parts, layers)
        norm(m, 2 * layers * (1 + again), 2 * layers)
        # Token table and head, gathered and reduced once each even if they are one. A table's gradient, to which many
        # tokens add in one place, is made in the master dtype and travels in the dtype of reductions.
        if isinstance(model, ViTConfig):
            read = micro  # by the head
            weight(h * 3 * model.patch**2)
            volume.add("all_reduce", "x", micro * model.patches * h / y, size=compute)
        else:
            read = m
            weight(outputs * h)
            summed(rows, m * h / features)  # embedding's output
            gathered(rows, m * h / features)  # and its gradient
        if isinstance(model, BertConfig):
            norm(m, 1, 1)  # the embedding's
            weight(h * h)  # the head's transform
            volume.add("all_reduce", "y", m * h / x, size=compute)
            volume.add("all_reduce", "x", m * h / y, size=compute)
            volume.add("all_gather", "x", m * h / x, size=compute)  # its result goes from x to y, the gradient back
            volume.add("all_gather", "y", m * h / y, size=compute)
        norm(read, 1, 1)
        weight(outputs * h)
        if square:
            on_square(outputs, h)
        else:
            gathered("x", read * h / y, 1 + mode.gathers_again)
            summed("y", read * outputs / x)  # logits
            gathered("y", read * outputs / x)
            summed("x", read * h / y)  # gradient of the head's input
        volume.add("max_reduce", "x", read / rows_inner, size=wide)
        volume.add("all_reduce", "x", 2 * read / rows_inner, size=wide)

    placements = replace(model.network(), mode=mode).placements().values()
    replicated = sum(p.local_numel(grid) for p in placements if not p.sharded)
    volume.add("all_reduce", "z", replicated, size=wide)
    volume.add("all_reduce", "data", sum(p.local_numel(grid) for p in placements), size=over_data)
    if split:
        for dims in ((1, 2),) if square else ((1,), (2,)):  # between which whole biases lie
            partial = sum(p.local_numel(grid) for p in placements if p.partial and len(p.shape) in dims)
            if partial:
                volume.add("all_reduce", rows, partial, size=wide)
    for axis in ("z", "data", *(("y",) if split else ())):
        volume.add("all_reduce", axis, 1, size=8)  # the reported loss
    return volume.on(grid)
