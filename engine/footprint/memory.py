"""Formulas say how much a rank's device holds at the fullest moment of a training step. No torch in it.

They count what PyTorch's allocator hands out, state included. Whatever the network, the grid and the flags, the fullest
is one of a few moments: _Moments says which, and what is there. Each part of that has a file of its own:
activations.py, weights.py, gradients.py. A processor and a GPU differ where these say so.

The sum is within 5 %, mostly within 2 %, of the profiler's record of allocations in real steps on processors
(tests/engine/test_memory.py), and within 1 % of steps traced on the meta device at full size. No GPU has confirmed what
is said of one. Not counted are:

    statistics of norms, of attention and of the loss, biases: some hundred bytes a token, some thousand a block
    messages that gloo has sent, which stay to a step's end
    masks of dropout: a byte an element of the residual stream, twice a block
    what a product takes for itself: with bf16 on a processor up to 1.7 MB (9 % of a step of 2.4); cuBLAS's workspace
    attention in a format without a fused kernel, such as fp64 on a GPU, which keeps all scores
    gloo's copy of a gather that is on its way, of which there are two at most
    cache=auto, which is a share of what is left
    a network of one block whose window of reduce-scatters holds more than its weights: up to 7 % off
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from engine.footprint.activations import Activations, Block
from engine.footprint.gradients import Gradients
from engine.footprint.held import Held, stages_held
from engine.footprint.weights import Pass, Weights, fullest_passes
from engine.grid import REPLICATING, SHARDING, Grid
from engine.optimizer_state import ADAMW, BUCKET, OptimizerState
from engine.overlap.flags import AUTO, Overlap
from engine.pipeline.options import DEFAULT
from engine.training_record import Training

SPARE = {"formulas": 0.05, "fragments": 0.1, "libraries": 0.15}
"""A plan leaves these shares of a device's memory free. No GPU has confirmed any but the first.

formulas: their error. fragments: memory that the allocator can't use. libraries: the device's context, about 0.5 GB,
and buffers of NCCL, 0.5 to 0.7 GB a group on A100s with NVLink (its issue 964), of which a grid has up to five: 4 GB of
a device's 40 or more.
"""
RESERVE = round(sum(SPARE.values()), 2)
USABLE = 1 - RESERVE


def usable(device_memory: float | None) -> float:
    """Give the bytes that a step may need of a device's memory: all but RESERVE, or any number where it isn't known."""
    return USABLE * device_memory if device_memory else inf


def cached_blocks(overlap: Overlap, device_memory: float | None, needed: float, block_bytes: Sequence[float]) -> int:
    """Count the blocks that cache=auto keeps beside a step that needs so many bytes; none of an unknown memory."""
    free = usable(device_memory) - needed if device_memory else 0.0
    return overlap.auto_blocks(free, block_bytes)


def blocks_cached(training: Training, grid: Grid, needed: float, device_memory: float | None) -> int:
    """Count the blocks whose weights a stage keeps gathered, of each pass that is under way, beside a step that needs
    so many bytes without them: as many as cache=N says, or as cache=auto has room for on the first stage.
    """
    model, overlap = training.model, training.overlap
    if grid.shards == 1 or not training.checkpoint_activations:
        return 0
    if overlap.cache != AUTO:
        return overlap.cache
    each = training.under_way(grid, 0) * grid.shards * training.compute
    weights = [sum(p.local_numel(grid) for p in of.placements if p.sharded) for of in model.network().blocks]
    return cached_blocks(overlap, device_memory, needed, [each * numel for numel in weights])


@dataclass(frozen=True, slots=True)
class Needs:
    """It has bytes of one rank, by what they are for, at the moment at which their sum is largest.

    state: weights, gradients and optimizer, as always; with the offload gradients and buckets, and what is no matrix.
    activations: what the forward keeps for the backward, those of blocks that are recomputed together included, and
    gradients of activations. weights: copies in the compute dtype, gathered for use or ahead of it. cache: gathered
    ones of cache=N. logits: with what the loss makes of some rows at a time. gradients: contributions of weights, and
    copies of their sums, on their way.
    """

    state: float
    activations: float
    weights: float
    cache: float
    logits: float
    gradients: float

    @property
    def total(self) -> float:
        return self.state + self.activations + self.weights + self.cache + self.logits + self.gradients


class Footprint:
    """It counts what one training needs, on any grid of devices of a kind: cpu or cuda."""

    def __init__(self, training: Training, device: str = "cuda", optimizer: OptimizerState = ADAMW) -> None:
        network = training.model.network()
        self._training, self._device, self._optimizer = training, device, optimizer
        self._block = Block.of(network.blocks[0].section)
        self._of_block = network.blocks[0].placements
        self._head = network.head_weight

    def on(self, grid: Grid) -> Needs:
        """Count what a rank of the grid needs, of a pipeline the one that needs most. The grid needn't divide all:
        parts are taken as fractions. Raises UsageError for stages that the network can't be cut into.
        """
        if grid.stages == 1 and self._training.pipeline == DEFAULT:
            return self._on_stage(grid, Held.whole(self._training.model.layers))
        fullest: dict[tuple[int, bool, bool], Held] = {}
        for held in sorted(stages_held(self._training, grid), key=lambda held: held.passes + held.pending):
            fullest[held.blocks, held.is_first, held.is_last] = held
        return max((self._on_stage(grid, held) for held in fullest.values()), key=lambda needs: needs.total)

    def _on_stage(self, grid: Grid, stage: Held) -> Needs:
        of, model, device = self._training, self._training.model, self._device
        rest = model.network().part((), first=stage.is_first, last=stage.is_last)
        dtypes, group = (of.compute, of.master), of.checkpoint_group(grid)
        share = of.batch.sequences / grid.batch_split
        at_once = of.batch.micro or share
        rows = at_once * model.sequence
        activations = Activations(model, self._block, grid, rows, *dtypes, device, group=group)
        head = self._head if stage.is_last else None
        weights = Weights(
            (self._of_block, rest), head, stage.blocks, grid, *dtypes, of.overlap, recomputed=group > 0,
            offloaded=of.offload,
        )  # fmt: skip
        scattered, summed = of.reduce(grid, SHARDING), of.reduce(grid, REPLICATING[0])
        gradients = Gradients(
            weights, grid, of.overlap, scattered, summed, of.gradient, device == "cpu", stage.deferring
        )
        moments = _Moments(self._block, stage, group, *dtypes, activations, weights, gradients)
        more = share * model.task.row_bytes + stage.messages(activations, grid)
        if stage.is_first:
            more += activations.kept_before()
        kept, gathered, *others = max(moments.of_step(share / at_once), key=sum)
        here = of.master * (weights.stored - weights.offloaded)
        state = of.gradient * weights.stored + here + self._optimizer.device_bytes(here)  # gradients are all here
        state += self._optimizer.bucket_bytes(of.master * min(BUCKET, weights.offloaded))
        return Needs(state, kept + more, gathered + weights.casts, *others)


Moment = tuple[float, float, float, float, float]
"""A moment has activations, weights, cache, logits and gradients, as Needs does, but for what is always there."""


@dataclass(frozen=True, slots=True)
class _Moments:
    """It lists the moments at which a rank's step can be fullest. group: so many blocks are recomputed together."""

    block: Block
    stage: Held
    group: int
    compute: int
    master: int
    activations: Activations
    weights: Weights
    gradients: Gradients

    def of_step(self, micro_batches: float) -> Iterator[Moment]:
        """Yield the loss and the head's backward; the backward of the last block, of the one before it, which begins
        with more gradients on their way, and of the first; of the last block of the second last group, which may be
        larger than the last one, and of the first; that of the token table; the weight gradients, where the backward
        leaves them; the sum over model replicas.
        """
        passes = fullest_passes(micro_batches * self.stage.chunks, alone=self.stage.of_step == 1)
        for now in map(self.stage.of_pass, passes):
            kept, gathered, cached = self.stage.beside(now, self.activations, self.weights)
            for moment in self._of_pass(now):
                yield kept + moment[0], gathered + moment[1], cached + moment[2], *moment[3:]
        yield 0.0, 0.0, 0.0, 0.0, self.gradients.at_end()

    def _of_pass(self, now: Pass) -> Iterator[Moment]:
        if self.stage.is_last:
            yield from self._at_head(now)
        last = self.stage.blocks - 1
        ends = {self._from(last) - 1, min(self.group - 1, last)}
        for index in {last, last - 1, 0} | ends:
            if index >= 0:
                yield from self._in_block(index, now)
        if self.stage.is_first:
            yield self._at_table(now)
        if self.stage.deferring:
            yield from self._in_weight_task(now)

    def _at_head(self, now: Pass) -> Iterator[Moment]:
        """Yield the loss, the backward of the product before it, and that of the norm before that."""
        act, weights, gradients = self.activations, self.weights, self.gradients
        kept = act.kept(self.stage.blocks) + act.kept_of_head()
        held = weights.waiting(0 if self.group else self.stage.blocks) + weights.ahead(self.stage.blocks, now)
        gathered, cache = held + weights.gathered(weights.head), weights.cached(self.stage.blocks)
        loss, before = act.logits() + act.made_by_loss(), gradients.in_flight([], now)
        yield kept, gathered, cache, loss, before
        sent = before + gradients.given(weights.head, self.compute, now)
        yield kept + act.stream * act.head_share, gathered, cache, act.logits(), sent
        after = gradients.in_flight([weights.head], now)
        yield kept + act.made_by_norm() * act.head_share + self._left(0), held, cache, 0.0, after

    def _in_block(self, index: int, now: Pass) -> Iterator[Moment]:
        """Yield a block's backward from its end: of a norm behind its feed-forward, of the second product, of the
        activation function, of the first product, and of the norm before that.
        """
        act, weights, gradients, block = self.activations, self.weights, self.gradients, self.block
        *others, up, down = weights.block
        first = self._from(index)
        again = act.recomputed(index - first + 1)
        kept = act.kept(index + 1) + again + act.stream  # and its output's gradient
        kept += self._left(self.stage.blocks - 1 - index)
        held = weights.waiting(index - first) + weights.ahead(first, now) + weights.beside(others)
        cache, above = weights.cached(first), gradients.made_above(self.stage.blocks - 1 - index)
        summing = gradients.summing(self.stage.blocks - 1 - index, now)
        without = kept - block.kept_inside * act.over_x
        if self.stage.deferring:
            without += block.last.k * act.over_x  # what the second product is of is left

        def then(activations: float, use: list[float], made: list[float], given: float | None) -> Moment:
            sent = 0.0 if given is None else gradients.given(given, self.compute, now)
            flights = gradients.in_flight([*made, *above], now)
            return activations, held + weights.gathered(*use), cache, 0.0, sent + flights + summing

        if block.norm_last:
            yield then(kept + act.made_by_norm(), [], [], None)
        yield then(kept + block.last.k * act.over_x, [up, down], [], down)
        yield then(without + block.activation.in_backward * act.over_x, [up], [down], None)
        yield then(without + block.first.n * act.over_x + act.stream, [up], [down], up)
        if self.stage.deferring:
            without += block.first.n * act.over_x
        yield then(without + act.made_by_norm(), [], [up, down], None)

    def _from(self, index: int) -> int:
        """Give the first block of those up to this one whose weights and activations are there with this one's."""
        return index // self.group * self.group if self.group else 0

    def _at_table(self, now: Pass) -> Moment:
        """Count the backward of the token table, whose many rows are summed in the master dtype."""
        weights, gradients = self.weights, self.gradients
        sent = gradients.given(weights.table, self.master, now)
        flights = gradients.in_flight(gradients.made_above(self.stage.blocks), now) + gradients.summing(
            self.stage.blocks, now
        )
        made = self.activations.made_by_table() + self._left(self.stage.blocks)
        return made, weights.ahead(0, now), 0.0, 0.0, sent + flights

    def _left(self, blocks: int) -> float:
        """Count what a backward that defers weight gradients has left of the head and of so many blocks."""
        return self.stage.left(self.activations, blocks) if self.stage.deferring else 0.0

    def _in_weight_task(self, now: Pass) -> Iterator[Moment]:
        """Yield the weight gradients of the head, of the first block, of whose pass all is left, and of the table."""
        weights, gradients = self.weights, replace(self.gradients, deferred=False)
        left, blocks = self._left(self.stage.blocks), self.stage.blocks
        of_block = [(tile, self.compute, blocks - 1) for tile in weights.block]
        for tile, dtype, above in [(weights.head, self.compute, 0), *of_block, (weights.table, self.master, blocks)]:
            made = gradients.made_above(above) if above else []
            sums = gradients.in_flight(made, now) + gradients.summing(above, now)
            yield left, weights.ahead(0, now), 0.0, 0.0, gradients.given(tile, dtype, now) + sums
