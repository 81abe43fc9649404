"""A rank stores a part of the weights, and gathers others; both are counted in bytes. No torch in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from engine.grid import Grid
from engine.overlap.flags import AUTO, Overlap
from engine.placement import Placement


@dataclass(frozen=True, slots=True)
class Pass:
    """It is one pass of a step. number: how many gave contributions before it; last: whether none follows; followed:
    whether a forward is still to come.
    """

    number: int
    last: bool
    followed: bool


def fullest_passes(micro_batches: float, *, alone: bool) -> list[Pass]:
    """List the passes that can be the fullest in a step of so many: later ones have an earlier one's contributions in
    flight, earlier ones may have more passes beside them unless each is alone, and all but the last already gather for
    the next.
    """
    last = max(0, ceil(micro_batches) - 1)
    numbers = range(min(3, last))
    first = [Pass(number, last=False, followed=True) for number in (numbers[-1:] if alone else numbers)]
    return [*first, Pass(last, last=True, followed=False)]


class Weights:
    """It counts those on one grid, which needn't divide everything: parts are taken as fractions.

    placements: of a block, and of what else the rank's stage holds. Elements: block, of each weight of a block before
    it is sharded, in the order of their use; table and head, of the first and the last weight; outside, of all that are
    in no block; stored_block and stored, of what a rank stores, of a block and in all. compute, master: bytes of an
    element that is used, and that is stored.
    """

    def __init__(
        self,
        placements: tuple[Sequence[Placement], Sequence[Placement]],
        head: Placement | None,
        layers: int,
        grid: Grid,
        compute: int,
        master: int,
        overlap: Overlap,
        *,
        recomputed: bool,
        offloaded: bool = False,
    ) -> None:
        of_block, others = ([(_tile(p, grid), p.sharded) for p in group] for group in placements)
        self._layers, self._shards, self._compute, self._recomputed = layers, grid.shards, compute, recomputed
        self.block = [tile for tile, sharded in of_block if sharded]
        rest = [tile for tile, sharded in others if sharded]
        self.table = rest[0] if rest else 0.0
        self.head = _tile(head, grid) if head else 0.0
        self.outside = sum(rest)
        self.stored_block, stored = (
            sum(tile / grid.shards if sharded else tile for tile, sharded in group) for group in (of_block, others)
        )
        self.stored = layers * self.stored_block + stored
        sharded = (layers * sum(self.block) + sum(rest)) / grid.shards
        self.offloaded = sharded if offloaded else 0.0
        """So many of these elements lie on the host in the master dtype."""
        gathers, self._narrow = grid.shards > 1, compute != master
        self._casts_sent = gathers and self._narrow and not offloaded
        self.casts = compute * (self.stored - sharded * self._casts_sent) if self._narrow else 0.0
        """A copy in the compute dtype is kept of all that isn't cast as it is sent."""
        self._gathers_again = grid.stages > 1 and not recomputed
        self._cached = min(overlap.cache, layers) if recomputed and gathers and overlap.cache != AUTO else 0
        self._depth = overlap.prefetch_depth if overlap.oag and gathers else 0

    def gathered(self, *tiles: float) -> float:
        """Count these weights, where they are sharded."""
        return self._compute * sum(tiles) if self._shards > 1 else 0.0

    def waiting(self, blocks: int) -> float:
        """Count what so many blocks keep gathered for their backward: nothing on a stage of a pipeline that recomputes
        none, whose backward gathers again.
        """
        return 0.0 if self._gathers_again else blocks * self.gathered(*self.block)

    def of_head(self) -> float:
        """Count what the last stage's head keeps gathered for its backward, in every pass that is in it."""
        return 0.0 if self._gathers_again else self.gathered(self.outside)

    def beside(self, tiles: Sequence[float]) -> float:
        """Count what a block's other weights keep gathered while one of its products is differentiated."""
        return 0.0 if self._gathers_again else self.gathered(*tiles)

    def cached(self, below: int) -> float:
        """Count what cache=N still holds for the recomputation of the first blocks."""
        return max(self._cached - (self._layers - below), 0) * self.gathered(*self.block)

    def ahead(self, below: int, now: Pass) -> float:
        """Count the next weights that oag gathers: for the recomputation of the first blocks, then for the next pass's
        forward, or its backward where no forward is to come. What each rank sends is counted where it is a cast.
        """
        gathers_again = self._recomputed or self._gathers_again
        again, following = 0, self.first(self._depth) if now.followed else []
        if gathers_again:
            uncached = self._layers - self._cached
            again = min(below, uncached, self._depth)
            if not (now.followed or now.last):
                following = self.block * min(uncached, self._depth)
        tiles = [*self.block * again, *following][: self._depth]
        return sum(tiles) * self._compute * (1 + self._casts_sent / self._shards)

    def first(self, count: int) -> list[float]:
        """List the first weights that a pass uses, in that order. Their gradients come last, in the reverse order."""
        one = [self.table, *self.block * min(self._layers, count), self.head]
        return (one * (count // len(one) + 1))[:count]


def _tile(placement: Placement, grid: Grid) -> float:
    return prod(placement.shape) / prod(grid[axis] for axis in placement.split if axis)
