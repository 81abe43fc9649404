"""How much a rank's device has to hold in a training step, from a network's placements and shape. No torch in it.

Counted is what the engine's own schedule and autograd keep, in the dtypes in which they keep it, at the largest of the
moments of a step: the loss, the backward of a block, that of the token table.

Not counted: the temporaries of a product, of an activation's gradient or of a kernel; the 256 MB of logits on which
the loss works at once on a GPU; what cache=auto takes, which is a share of what is left; what an allocator loses in
fragments; the buffers of NCCL, some for each of the groups; the context of the device. SHARE leaves room for these.
"""

from dataclasses import dataclass, fields
from math import prod

from engine.batch import Batch
from engine.grid import Grid
from engine.layers.chunk import CHUNK_BYTES
from engine.models.architecture import Architecture
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
    """What of a run decides about memory. The names of the dtypes are those of --precision and --reduce-dtype."""

    batch: Batch
    precision: str = "fp32"
    reduce_dtype: str | None = None
    checkpoint_activations: bool = False
    overlap: Overlap = NO_OVERLAP

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
    """Bytes of one rank, by what they are for.

    state: weights, gradients and moments. activations: what the forward keeps for the backward, a block's recomputed
    ones included. weights: gathered ones, in use or ahead of it. cache: gathered ones of cache=N. logits: with what the
    loss makes of them. gradients: contributions of weights on their way to their sum. The last four are those of the
    moment at which their sum is largest.
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
        return sum(getattr(self, part.name) for part in fields(self))


class Footprint:
    """Of one network and workload, on any grid."""

    def __init__(self, model: Architecture, workload: Workload) -> None:
        self.model, self.workload = model, workload
        placements = model.placements()
        self._block = [p for name, p in placements.items() if name.startswith("blocks.0.")]
        self._rest = [p for name, p in placements.items() if not name.startswith("blocks.")]

    def on(self, grid: Grid) -> Needs:
        """What each rank of the grid needs. The grid needn't divide everything: parts are taken as fractions."""
        work, layers = self.workload, self.model.layers
        stored = layers * sum(_stored(p, grid) for p in self._block) + sum(_stored(p, grid) for p in self._rest)
        state = STATES * work.master * stored
        tiles = sorted((_tile(p, grid) for p in self._block if p.sharded), reverse=True)
        table = max(_tile(p, grid) for p in self._rest if p.sharded)
        gathers = grid.z > 1
        copied = work.compute if gathers else 0
        of_block, of_head = copied * sum(tiles), copied * table
        inputs = (layers + 2) * self._rows(grid) * self.model.hidden / grid.y * work.compute
        block = self._block_activations(grid)
        cached, several = 0, work.micro_batches(grid) > 1
        if work.checkpoint_activations:
            kept, held, again, weights_again = inputs, 0.0, block, of_block
            cached = work.overlap.cache if gathers and work.overlap.cache != AUTO else 0
        else:
            kept, held, again, weights_again = inputs + layers * block, layers * of_block, 0.0, 0.0
        if gathers and work.overlap.oag and (several or (work.checkpoint_activations and cached < layers)):
            held += copied * _most(tiles, work.overlap.prefetch_depth)
        made, flying = self._gradients(tiles, grid)
        head_made, head_flying = self._gradients([table], grid)
        table_made, _ = self._gradients([table], grid, made_in=work.master)
        logits = self._logits(grid)
        carried = head_flying + flying if several else 0.0
        last = max(cached - 1, 0)
        if not gathers and work.compute != work.master:  # cast once a step, and kept
            held += work.compute * sum(_stored(p, grid) for p in (*layers * self._block, *self._rest) if p.sharded)
        moments = (
            Needs(state, kept, held + of_head, cached * of_block, logits + self._rows_of_loss(logits, grid), carried),
            Needs(state, kept, held + of_head, cached * of_block, logits, head_made + carried),
            Needs(state, kept + again, held + weights_again, last * of_block, 0.0, made + head_flying + flying),
            Needs(state, 0.0, 0.0, 0.0, 0.0, table_made + flying),
        )
        return max(moments, key=lambda needs: needs.total)

    def _rows(self, grid: Grid) -> float:
        """Tokens that a rank works on at once."""
        sequences = self.workload.batch.micro or self.workload.batch.sequences / grid.batch_split
        return sequences * self.model.sequence

    def _block_activations(self, grid: Grid) -> float:
        """What the backward of a block needs of its forward, its input excepted."""
        kept, work = self.model.kept_features(), self.workload
        features = kept.over_x / grid.x + kept.over_y / grid.y
        normal = 2 * self.model.hidden / grid.y * work.master if grid.y > 1 else 0.0  # which norm.py keeps
        return self._rows(grid) * (features * work.compute + normal)

    def _logits(self, grid: Grid) -> float:
        """The one copy of the logits, which become their gradient in place."""
        return self._rows(grid) * self.model.vocabulary / grid.x * self.workload.compute

    def _rows_of_loss(self, logits: float, grid: Grid) -> float:
        """What the loss makes of some rows at a time, never below fp32; a CPU casts whole ones first."""
        work = self.workload
        wide = min(logits * work.master / work.compute, CHUNK_BYTES["cpu"])
        return 2 * wide if grid.x == 1 and work.compute != work.master else wide

    def _gradients(self, tiles: list[float], grid: Grid, made_in: int | None = None) -> tuple[float, float]:
        """Of weights with these tiles, the largest first: one that is being made (in a dtype of so many bytes, else the
        compute dtype) and summed over z, and those that are still on their way.
        """
        work = self.workload
        dtype = made_in or work.compute
        if grid.z == 1 and dtype == work.master:
            return 0.0, 0.0
        cast = work.reduce if work.reduce != dtype else 0
        made = tiles[0] * (dtype + cast + work.reduce / grid.z)
        if not work.overlap.ors or grid.z == 1:
            return made, 0.0
        window = min(work.overlap.reduce_window, 1 if len(tiles) == 1 else work.overlap.reduce_window - 1)
        return made, _most(tiles, window) * work.reduce


def _splits(placement: Placement, grid: Grid) -> int:
    return prod(grid[axis] for axis in placement.split if axis)


def _tile(placement: Placement, grid: Grid) -> float:
    return prod(placement.shape) / _splits(placement, grid)


def _stored(placement: Placement, grid: Grid) -> float:
    return _tile(placement, grid) / (grid.z if placement.sharded else 1)


def _most(tiles: list[float], count: int) -> float:
    """The largest of so many neighbours, at most: blocks repeat."""
    whole, rest = divmod(count, len(tiles))
    return whole * sum(tiles) + sum(tiles[:rest])
