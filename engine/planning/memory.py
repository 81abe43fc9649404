"""How much a rank's device holds at the fullest moment of a training step, as formulas. No torch in it.

What is counted is what PyTorch's allocator hands out, state included, at each of the moments of which one is the
fullest, whatever the network, the grid and the flags: see Moments. Against the profiler's record of allocations of real
steps on processors it is right within 5 % (tests/engine/test_memory.py). What a GPU needs differs in three places, all
under the name of the device here; no GPU has confirmed them.

Not counted, and left to SHARE: on all devices what is less than a hundredth of a step (statistics of norms, losses
and attention, tokens, biases' and replicated parameters' gradients on their way, masks of dropout); what a library
takes for one product; on a GPU that attention works in a format without a fused kernel, as fp64 has none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from engine.batch import Batch
from engine.grid import Grid
from engine.layers.chunk import CHUNK_BYTES
from engine.models.architecture import Architecture
from engine.overlap.bucket import bucket_bytes
from engine.overlap.flags import AUTO, Overlap
from engine.placement import Placement

SHARE = 0.6
"""Of a device's memory, what a chosen grid may count on."""
BYTES = {"bf16": 2, "fp32": 4, "fp64": 8}
NO_OVERLAP = Overlap()
STATES = 4
"""Of each parameter in the master dtype: itself, its gradient, two moments of Adam."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What of a run decides about memory. The names of the dtypes are those of --precision and --reduce-dtype.

    device: cpu or cuda, on which it runs.
    """

    batch: Batch
    precision: str = "fp32"
    reduce_dtype: str | None = None
    checkpoint_activations: bool = False
    overlap: Overlap = NO_OVERLAP
    device: str = "cuda"

    def micro_batches(self, grid: Grid) -> float:
        """Of a rank, in a step."""
        return self.batch.sequences / grid.batch_split / (self.batch.micro or self.batch.sequences / grid.batch_split)

    @property
    def compute(self) -> int:
        """Bytes of an element of gathered weights and activations."""
        return BYTES[self.precision]

    @property
    def master(self) -> int:
        """Of the state; of statistics and losses too."""
        return max(self.compute, BYTES["fp32"])

    @property
    def reduce(self) -> int:
        """Of weight gradients on their way."""
        return BYTES[self.reduce_dtype or self.precision]


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes of one rank, by what they are for. All but the state are those of the moment at which the sum is largest.

    state: weights, gradients and moments. activations: what the forward keeps for the backward, a block's recomputed
    ones included, and gradients of activations. weights: copies in the compute dtype, gathered for use or ahead of it.
    cache: gathered ones of cache=N. logits: with what the loss makes of some rows at a time. gradients: contributions
    of weights, and copies of their sums, on their way.
    """

    state: float
    activations: float
    weights: float
    cache: float
    logits: float
    gradients: float

    @property
    def total(self) -> float:
        """Bytes in all."""
        return self.state + self.activations + self.weights + self.cache + self.logits + self.gradients


class Footprint:
    """Of one network and workload, on any grid."""

    def __init__(self, model: Architecture, workload: Workload) -> None:
        self.model, self.workload, self.kept = model, workload, model.kept_features()
        placements = model.placements()
        self.block = [p for name, p in placements.items() if name.startswith("blocks.0.")]
        self.rest = [p for name, p in placements.items() if not name.startswith("blocks.")]

    def on(self, grid: Grid) -> Needs:
        """What each rank of the grid needs. The grid needn't divide everything: parts are taken as fractions."""
        return max(_Rank(self, grid).moments(), key=lambda needs: needs.total)


@dataclass(frozen=True, slots=True)
class _Pass:
    """The forward and backward of a micro-batch. number: counted from 0, as far as it matters; last: of the step."""

    number: int
    last: bool


class _Rank:
    """A rank of one grid: what each part takes of it, and the moments at which a step can be fullest."""

    def __init__(self, of: Footprint, grid: Grid) -> None:
        work, self.of, self.grid, self.layers = of.workload, of, grid, of.model.layers
        self.work, self.compute, self.master, self.reduce = work, work.compute, work.master, work.reduce
        self.recomputes, self.gathers, self.on_cpu = work.checkpoint_activations, grid.z > 1, work.device == "cpu"
        # Bytes of a feature that x splits, of one that y splits, of the residual stream; all of the rows of a pass.
        self.rows = (work.batch.micro or work.batch.sequences / grid.batch_split) * of.model.sequence
        self.over_x, self.over_y = self.rows * self.compute / grid.x, self.rows * self.compute / grid.y
        self.stream = self.over_y * of.model.hidden
        self.wide_stream = self.stream * self.master / self.compute
        self.norm_keeps_input = grid.y == 1 or of.kept.norm == "rmsnorm"
        # Elements of weights before z shards them, a block's in the order of their use, and of what is stored.
        self.tiles = [_tile(p, grid) for p in of.block if p.sharded]
        rest = [_tile(p, grid) for p in of.rest if p.sharded]
        self.table, self.head = rest[0], rest[-1]
        self.stored_block = sum(_stored(p, grid) for p in of.block)
        self.stored = self.layers * self.stored_block + sum(_stored(p, grid) for p in of.rest)
        self.state = STATES * self.master * self.stored
        # A block's weights, gathered; those that z doesn't split are cast once a step, and the copies stay.
        self.block = self.compute * sum(self.tiles) if self.gathers else 0.0
        whole = 0 if self.gathers or self.compute == self.master else self.layers * sum(self.tiles) + sum(rest)
        self.casts = self.compute * whole
        overlap = work.overlap
        self.cached = overlap.cache if self.recomputes and self.gathers and overlap.cache != AUTO else 0
        self.depth = overlap.prefetch_depth if self.gathers and overlap.oag else 0
        self.window = overlap.reduce_window if self.gathers and overlap.ors else 0

    def moments(self) -> Iterator[Needs]:
        """The loss and the head's backward; the backward of the last block, of the one before it, which begins with
        more gradients on their way, and of the first; that of the token table; the sum over data.
        """
        for turn in _passes(self.work.micro_batches(self.grid)):
            yield from self._at_head(turn)
            for index in {self.layers - 1, max(self.layers - 2, 0), 0}:
                yield from self._in_block(index, turn)
            yield self._at_table(turn)
        if self.grid.data > 1 and self.reduce != self.master:
            yield Needs(self.state, 0.0, self.casts, 0.0, 0.0, self.reduce * self.stored)

    def _at_head(self, turn: _Pass) -> Iterator[Needs]:
        """The loss, the backward of the product before it, and that of the norm before that."""
        kept, weights = self._kept(self.layers) + self._kept_of_norm(), self._weights(self.layers, turn)
        gathered = weights + (self.compute * self.head if self.gathers else 0.0)
        logits, cache, before = self._logits(), self.cached * self.block, self._in_flight(self.layers, turn)
        loss, flying = logits + self._rows_of_loss(), self._flying([], before, turn)
        yield Needs(self.state, kept + self.stream, gathered, cache, loss, flying)
        sent = self._sent(self.head, self.compute, turn) + flying
        yield Needs(self.state, kept + 2 * self.stream, gathered, cache, logits, sent)
        flying = self._flying([self.head], before, turn)
        yield Needs(self.state, kept + self.stream + self._made_by_norm(), weights, cache, 0.0, flying)

    def _in_block(self, index: int, turn: _Pass) -> Iterator[Needs]:
        """The backward of its last product, of the activation function before that, of the product and of the norm
        before that.
        """
        inner, up, down = self.of.kept.feed_forward, self.tiles[-2], self.tiles[-1]
        kept, weights = self._kept(index + 1) + self.stream, self._weights(index, turn) + self.block
        if self.recomputes:
            kept += self._kept_of_block() - (self.stream if self.norm_keeps_input else 0.0)  # which is the block's
        cache = max(self.cached - (self.layers - index), 0) * self.block
        before = self._in_flight(index, turn)
        summing = self._summing((self.layers - 1 - index) * self.stored_block, turn)

        def needs(activations: float, weights: float, made: list[float], sent: float = 0.0) -> Needs:
            gradients = sent + self._flying(made, before, turn) + summing
            return Needs(self.state, activations, weights, cache, 0.0, gradients)

        yield needs(kept + inner.last * self.over_x, weights, [], self._sent(down, self.compute, turn))
        kept -= inner.kept * self.over_x
        weights -= self.compute * down if self.gathers else 0.0
        yield needs(kept + inner.bend * self.over_x, weights, [down])
        made = inner.first * self.over_x + self.stream
        yield needs(kept + made, weights, [down], self._sent(up, self.compute, turn))
        weights -= self.compute * up if self.gathers else 0.0
        yield needs(kept + self._made_by_norm(), weights, [up, down])

    def _at_table(self, turn: _Pass) -> Needs:
        """The backward of the token table, whose many rows are summed in the master dtype."""
        rows = self.stream * (2 if self.grid.x > 1 else 1)  # those of other ranks' tokens are set to zero in a copy
        if self.compute != self.master:
            rows += self.wide_stream
        sent = self._sent(self.table, self.master, turn) + self._flying([], self._in_flight(-1, turn), turn)
        summing = self._summing(self.layers * self.stored_block, turn)
        return Needs(self.state, rows, self._weights(0, turn), 0.0, 0.0, sent + summing)

    def _kept(self, blocks: int) -> float:
        """What these first blocks keep for the backward: where each is recomputed, its input alone."""
        return blocks * (self.stream if self.recomputes else self._kept_of_block())

    def _kept_of_block(self) -> float:
        """Its input among it, if the first norm keeps that."""
        kept = self.of.kept
        products = kept.over_x * self.over_x + kept.over_y * self.over_y
        return products + 2 * self._kept_of_norm() + kept.angles * self.master

    def _kept_of_norm(self) -> float:
        """Its input or, of the engine's own LayerNorm, what that becomes before it is scaled, in the master dtype."""
        return self.stream if self.norm_keeps_input else self.wide_stream

    def _made_by_norm(self) -> float:
        """In its backward: by a kernel a gradient; by the engine's own norms some products in the master dtype, too."""
        narrow, casts = self.stream, self.compute != self.master
        if self.of.kept.norm == "rmsnorm" and (self.grid.y > 1 or self.on_cpu):
            return (4 * self.wide_stream + narrow) if casts else 3 * self.wide_stream
        return (3 if casts else 2) * self.wide_stream if self.grid.y > 1 else narrow

    def _logits(self) -> float:
        """The one copy, which becomes their gradient in place."""
        return self.of.model.vocabulary * self.over_x

    def _rows_of_loss(self) -> float:
        """What the loss makes of some rows at a time, never below fp32; a processor casts them first."""
        row = self.of.model.vocabulary / self.grid.x * self.master
        rows = min(self.rows, max(1, CHUNK_BYTES[self.work.device] // row))
        return rows * row * (2 if self.on_cpu and self.compute != self.master else 1)

    def _weights(self, below: int, turn: _Pass) -> float:
        """Copies of weights in the compute dtype: of those that z doesn't split, made once a step; else of those that
        wait for the backward of the blocks below, and of the next to be used: for the recomputation of those blocks,
        then in the next pass.
        """
        again = min(below, self.layers - self.cached) if self.recomputes else 0
        following = [] if turn.last else self._pass(self.depth)
        ahead = sum([*self.tiles * min(again, self.depth), *following][: self.depth])
        cast = self.compute / self.grid.z if self.compute != self.master else 0.0  # what is sent
        waiting = 0.0 if self.recomputes else below * self.block
        return self.casts + waiting + ahead * (self.compute + cast)

    def _pass(self, count: int) -> list[float]:
        """The first weights that passes use, which are the last whose gradients they make, the other way round."""
        one = [self.table, *self.tiles * min(self.layers, count), self.head]
        return (one * (count // len(one) + 1))[:count]

    def _in_flight(self, index: int, turn: _Pass) -> list[float]:
        """Reduce-scatters that were issued before those of this block, the latest first, as the window has them."""
        own = [*self.tiles * min(self.layers - 1 - index, self.window), self.head] if index < self.layers else []
        earlier = self._pass(self.window) if turn.number else []
        flights = [self._flight(tile, turn.number) for tile in own]
        return (flights + [self._flight(tile, turn.number - 1) for tile in earlier])[: self.window]

    def _flight(self, tile: float, number: int) -> float:
        """What is sent, what comes in with gloo, and the sum, which has its place in a first pass in one dtype."""
        placed = number == 0 and self.reduce == self.master
        return tile * self.reduce * ((2 if self.on_cpu else 1) + (0 if placed else 1 / self.grid.z))

    def _flying(self, made: list[float], before: list[float], turn: _Pass) -> float:
        """Bytes of reduce-scatters in flight, those of what this block has made already among them, the latest first."""
        return sum([*(self._flight(tile, turn.number) for tile in made), *before][: self.window])

    def _sent(self, tile: float, dtype: int, turn: _Pass) -> float:
        """A weight's gradient that is made in a dtype of so many bytes, cast if it travels in another, and given away.

        Where nothing is to be sent it is made where it belongs, or added to that; on a processor it is cast for this.
        """
        cast = tile * dtype if dtype != self.reduce else 0.0
        if self.gathers:
            return cast + self._flight(tile, turn.number)
        if dtype == self.master:
            return 0.0
        added = tile * self.master if self.on_cpu and turn.number and self.reduce != self.master else 0.0
        return cast + tile * self.reduce + added

    def _summing(self, stored: float, turn: _Pass) -> float:
        """Copies of gradients that are summed over data already, in whole buckets."""
        overlap, data = self.work.overlap, self.grid.data
        if not turn.last or not overlap.data or data == 1 or self.reduce == self.master:
            return 0.0
        bucket = overlap.bucket_bytes or bucket_bytes(data)
        return stored * self.reduce // bucket * bucket


def _passes(count: float) -> list[_Pass]:
    """Those of a step of so many that can be the fullest."""
    if count <= 1:
        return [_Pass(0, last=True)]
    return [_Pass(0 if count <= 2 else 2, last=False), _Pass(1 if count <= 2 else 2, last=True)]


def _tile(placement: Placement, grid: Grid) -> float:
    return prod(placement.shape) / prod(grid[axis] for axis in placement.split if axis)


def _stored(placement: Placement, grid: Grid) -> float:
    return _tile(placement, grid) / (grid.z if placement.sharded else 1)
