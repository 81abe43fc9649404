"""Coarse bound of a rank's memory in a training step, which prunes what can't fit. No torch.

A step's trace on the meta device decides the rest (tracing/memory.py). Both count what PyTorch's allocator hands out.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf

from engine.footprint.stage import DEVICES, Parts, Stage, StageCount, stages
from engine.grid import Grid
from engine.optimizer_state import BUCKET, STATES, OptimizerState
from engine.overlap.flags import AUTO, Overlap
from engine.pipeline.registry import DEFAULT
from engine.training_record import Training

ERROR = 0.15
"""Largest share by which the count exceeds a trace: it only prunes beyond that (tests/engine/test_memory.py)."""
ERROR_OF_UNLIKE = 0.25
"""The same where blocks differ."""
SPARE = {"trace": 0.05, "fragments": 0.1, "libraries": 0.15}
"""A plan leaves these shares of a device's memory free. No GPU has confirmed any but the first.

trace: its error. fragments: memory that the allocator can't use. libraries: the device's context, about 0.5 GB,
and buffers of NCCL, 0.5 to 0.7 GB a group on A100s with NVLink (its issue 964), of which a grid has up to five: 4 GB of
a device's 40 or more.
"""
RESERVE = round(sum(SPARE.values()), 2)
USABLE = 1 - RESERVE


def usable(device_memory: float | None) -> float:
    """Return the bytes that a step may need of a device's memory: all but RESERVE, or any number if it isn't known."""
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
    network = model.network()
    weights = [
        sum(p.local_numel(grid) for p in block.placements(network.mode) if p.sharded)
        for block in network.blocks[: training.recomputed_blocks]
    ]
    return cached_blocks(overlap, device_memory, needed, [each * numel for numel in weights])


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes of one rank at the fullest moment of a step, by what they are for."""

    state: float
    """weights, gradients and optimizer; with the offload gradients and buckets, and what is no matrix"""
    activations: float
    """kept by the forward for the backward, made again by it, and gradients of them"""
    weights: float
    """copies in the compute format, gathered for use or ahead of it"""
    cache: float
    """gathered weights of cache=N"""
    logits: float
    """with what the loss makes of some rows at a time"""
    gradients: float
    """contributions of weights, and copies of their sums, on their way"""

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return sum(asdict(self).values())


class Footprint:
    """Count of what one training needs, on any grid of devices of a kind: cpu, cuda, or meta, on which it is traced."""

    def __init__(self, training: Training, device: str = "cuda", optimizer: OptimizerState | None = None) -> None:
        """optimizer: what one keeps, in the place of the one that the training names."""
        self._training = training
        self._device = DEVICES[device]
        self._optimizer = STATES[training.optimizer] if optimizer is None else optimizer
        self._parts = Parts.of(training.model.network())
        alike, recomputed = self._parts.network.alike, training.recomputed_blocks
        self._kinds = [(0 if alike else number, number < recomputed) for number in range(training.model.layers)]
        self.error = ERROR if alike else ERROR_OF_UNLIKE

    def on(self, grid: Grid) -> Needs:
        """Count what a rank of the grid needs, of a pipeline the one that needs most. The grid needn't divide all.

        Raises UsageError for stages that the network can't be cut into.
        """
        return max((needs for _, needs in self.of_stages(grid)), key=lambda needs: needs.total)

    def exceeds(self, grid: Grid, limit: float) -> bool:
        """Say whether a rank needs more bytes than the limit for sure."""
        return self.on(grid).total > limit * (1 + self.error)

    def surely_fits(self, grid: Grid, limit: float) -> bool:
        """Say whether a rank needs no more bytes than the limit for sure."""
        return self.on(grid).total * (1 + self.error) <= limit

    def of_stages(self, grid: Grid) -> list[tuple[int, Needs]]:
        """Count what ranks of the stages need: of stages that are alike the fullest, with its number."""
        if grid.stages == 1 and self._training.pipeline == DEFAULT:
            return [(0, self._of_stage(grid, Stage((range(self._training.model.layers),))))]
        fullest: dict[tuple[tuple[tuple[int, bool], ...], bool, bool], tuple[int, Stage]] = {}
        for number, stage in sorted(enumerate(stages(self._training, grid)), key=lambda it: it[1].kept + it[1].pending):
            fullest[tuple(self._kinds[block] for block in stage.blocks), stage.is_first, stage.is_last] = number, stage
        return [(number, self._of_stage(grid, stage)) for number, stage in fullest.values()]

    def _of_stage(self, grid: Grid, stage: Stage) -> Needs:
        training, count = self._training, StageCount(self._training, self._parts, grid, stage, self._device)
        offloaded = count.sharded if training.offload else 0.0
        here = training.master * (count.stored - offloaded)
        state = training.gradient * count.stored + here + self._optimizer.device_bytes(here)  # gradients are all here
        state += self._optimizer.bucket_bytes(training.master * min(BUCKET, offloaded))
        return Needs(state, *count.fullest())
