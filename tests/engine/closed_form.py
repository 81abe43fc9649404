"""What one rank sends in a training step, from the shapes alone.

axonn-sc24 Eq. 1-5 give the linear layers: all-gather of k n / (Gx Gy Gz), reduce-scatter of k n / (Gx Gy), all-reduces
of m n / Gx and m k / Gy elements for the m rows of a rank. To that come norm statistics, embedding, loss, replicated
gradients, the data all-reduce of everything, and what activation checkpointing repeats. Of bf16, sums over 64 ranks or
more travel in fp32.
"""

from collections import Counter
from dataclasses import dataclass, field

from engine.batch import Batch
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig


@dataclass
class Volume:
    """Calls and bytes by (kind, axis)."""

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)
    num_bytes: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, kind: str, axis: str, elements: float, *, size: int, times: int = 1) -> None:
        self.calls[kind, axis] += times
        self.num_bytes[kind, axis] += int(elements * size * times)


@dataclass(frozen=True)
class Decoder:
    """linears: (n, k) of a block's layers in order, which are normal and transposed by turns. norm_words: what a norm
    shares of each row, forward and backward: mean and M2, or the mean of squares alone.
    """

    linears: tuple[tuple[int, int], ...]
    norm_words: int


def decoder(model: Architecture) -> Decoder:
    h = model.hidden
    if isinstance(model, LlamaConfig):
        kv = model.kv_heads * h // model.heads
        return Decoder(((h + 2 * kv, h), (h, h), (2 * model.ffn, h), (h, model.ffn)), 1)
    assert isinstance(model, GPTConfig)
    return Decoder(((3 * h, h), (h, h), (4 * h, h), (h, 4 * h)), 2 if model.norm == "layernorm" else 1)


def closed_form(model: Architecture, batch: Batch, grid: Grid, *, precision: str, checkpoint: bool) -> Volume:
    """Of a step without cached gathers, the loss that is reported included."""
    volume, parts = Volume(), decoder(model)
    h, vocabulary, layers = model.hidden, model.vocabulary, model.layers
    compute = {"fp64": 8, "fp32": 4, "bf16": 2}[precision]
    wide = max(compute, 4)
    over_z, over_data = (wide if ranks >= 64 else compute for ranks in (grid.z, grid.data))
    share = batch.per_rank(grid)
    micro = batch.micro or share
    m, again = micro * model.sequence, 1 if checkpoint else 0
    x, y, z = grid.x, grid.y, grid.z

    for _ in range(share // micro):
        for number, (n, k) in enumerate(parts.linears):
            tile = n * k / (x * y)
            volume.add("all_gather", "z", tile / z, size=compute, times=layers * (1 + again))
            volume.add("reduce_scatter", "z", tile, size=over_z, times=layers)
            normal = number % 2 == 0
            in_axis, out_axis, out_parts, in_parts = ("y", "x", x, y) if normal else ("x", "y", y, x)
            # The last all-reduce of a block is not repeated: nothing after it needs its result.
            passes = 1 if number == len(parts.linears) - 1 else 1 + again
            volume.add("all_reduce", in_axis, m * n / out_parts, size=compute, times=layers * passes)
            volume.add("all_reduce", out_axis, m * k / in_parts, size=compute, times=layers)
        # Token table and head, gathered and reduced once each even if they are one. A table's gradient, to which many
        # tokens add in one place, is made in the master dtype and travels in the dtype of reductions.
        for _ in range(2):
            volume.add("all_gather", "z", vocabulary * h / (x * y * z), size=compute)
            volume.add("reduce_scatter", "z", vocabulary * h / (x * y), size=over_z)
        volume.add("all_reduce", "x", m * h / y, size=compute)  # embedding's output
        volume.add("all_reduce", "y", m * vocabulary / x, size=compute)  # logits
        volume.add("all_reduce", "x", m * h / y, size=compute)  # gradient of the head's input
        volume.add("max_reduce", "x", m, size=wide)
        volume.add("all_reduce", "x", 2 * m, size=wide)
        norms, words = 2 * layers + 1, parts.norm_words
        statistics = "all_gather" if words == 2 else "all_reduce"
        volume.add(statistics, "y", words * m, size=wide, times=norms + 2 * layers * again)
        volume.add("all_reduce", "y", words * m, size=wide, times=norms)

    placements = model.placements().values()
    replicated = sum(p.local_numel(grid) for p in placements if not p.sharded)
    volume.add("all_reduce", "z", replicated, size=wide)
    volume.add("all_reduce", "data", sum(p.local_numel(grid) for p in placements), size=over_data)
    for axis in ("z", "data"):
        volume.add("all_reduce", axis, 1, size=8)  # the reported loss
    active = {"x": x > 1, "y": y > 1, "z": z > 1, "data": grid.data > 1}
    volume.calls = Counter({key: n for key, n in volume.calls.items() if active[key[1]]})
    volume.num_bytes = Counter({key: n for key, n in volume.num_bytes.items() if active[key[1]]})
    return volume
