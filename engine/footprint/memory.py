"""Formulas say how much a rank's device holds at the fullest moment of a training step. No torch in it.

They count what PyTorch's allocator hands out, state included. Whatever the network, the grid and the flags, the fullest
is one of a few moments: moments.py says which, and what is there. Each part of that has a file of its own:
activations.py, weights.py, gradients.py; and so has the backward of blocks of transformers (blocks.py), and of those on
images (images.py). A processor and a GPU differ where these say so.

The sum is within 5 %, mostly within 2 %, of the profiler's record of allocations in real steps on processors
(tests/engine/test_memory.py), and within 1 % of steps traced on the meta device at full size. No GPU has confirmed what
is said of one. Not counted are:

    statistics of norms, of attention and of the loss, biases: some hundred bytes a token, some thousand a block
    messages that gloo has sent, which stay to a step's end
    masks of dropout: a byte an element of what is dropped, twice a block of a transformer
    what a product takes for itself: with bf16 on a processor up to 1.7 MB (9 % of a step of 2.4); cuBLAS's workspace
    attention in a format without a fused kernel, such as fp64 on a GPU, which keeps all scores
    gloo's copy of a gather that is on its way, of which there are two at most
    cache=auto, which is a share of what is left
    a network of one block whose window of reduce-scatters holds more than its weights: up to 7 % off
    of convolutions: cuDNN's workspace, copies that a tuned one of single pixels takes, and in fp64 on a processor rows
    that a convolution makes of images
    of unlike chunks of a stage: that the ones with the larger images may be more often under way (6 % off)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from engine.footprint.activations import Activations
from engine.footprint.gradients import Gradients
from engine.footprint.held import Held, stages_held
from engine.footprint.moments import Moments
from engine.footprint.rows import Rows
from engine.footprint.stream import Stream
from engine.footprint.weights import Weights
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
        self._training, self._device, self._optimizer = training, device, optimizer
        self._network = network = training.model.network()
        self._stream, self._head = Stream(network), network.head_weight
        placed = {id(section): section.placements() for section in network.sections}
        self._placed = [placed[id(block.section)] for block in network.blocks]
        self._kinds = [0 if network.alike else number for number in range(len(network.blocks))]

    def on(self, grid: Grid) -> Needs:
        """Count what a rank of the grid needs, of a pipeline the one that needs most. The grid needn't divide all:
        parts are taken as fractions. Raises UsageError for stages that the network can't be cut into.
        """
        if grid.stages == 1 and self._training.pipeline == DEFAULT:
            return self._on_stage(grid, Held.whole(self._training.model.layers))
        fullest: dict[tuple[tuple[int, ...], bool, bool], Held] = {}
        for held in sorted(stages_held(self._training, grid), key=lambda held: held.passes + held.pending):
            fullest[tuple(self._kinds[number] for number in held.numbers), held.is_first, held.is_last] = held
        return max((self._on_stage(grid, held) for held in fullest.values()), key=lambda needs: needs.total)

    def _on_stage(self, grid: Grid, stage: Held) -> Needs:
        of, model, on_cpu = self._training, self._training.model, self._device == "cpu"
        rest = self._network.part((), first=stage.is_first, last=stage.is_last)
        dtypes, group = (of.compute, of.master), of.checkpoint_group(grid)
        share = of.batch.sequences / grid.batch_split
        at_once = of.batch.micro or share
        activations = Activations(
            self._network,
            self._stream.of_stage(stage.chunks, group),
            Rows(model, grid, at_once, *dtypes, on_cpu),
            group=group,
            deferring=stage.deferring,
        )
        head = self._head if stage.is_last else None
        weights = Weights(
            ([self._placed[number] for number in stage.numbers], rest),
            head,
            grid,
            *dtypes,
            of.overlap,
            recomputed=group > 0,
            offloaded=of.offload,
        )
        scattered, summed = of.reduce(grid, SHARDING), of.reduce(grid, REPLICATING[0])
        gradients = Gradients(weights, grid, of.overlap, scattered, summed, of.gradient, on_cpu, stage.deferring)
        moments = Moments(stage, group, *dtypes, activations, weights, gradients, alike=self._network.alike)
        more = share * model.task.row_bytes + stage.messages(activations)
        if stage.is_first:
            more += activations.kept_before()
        kept, gathered, *others = max(moments.of_step(share / at_once), key=sum)
        here = of.master * (weights.stored - weights.offloaded)
        state = of.gradient * weights.stored + here + self._optimizer.device_bytes(here)  # gradients are all here
        state += self._optimizer.bucket_bytes(of.master * min(BUCKET, weights.offloaded))
        return Needs(state, kept + more, gathered + weights.casts, *others)
