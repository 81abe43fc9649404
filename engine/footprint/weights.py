"""A rank stores a part of the weights, and gathers others; both are counted in bytes. No torch in it."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
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

    placements: of each block of the rank's stage, and of what else that holds. Elements: blocks, of each weight of a
    block before it is sharded, in the order of their use; table and head, of the first and the last weight; outside, of
    all that are in no block; stored_above, of what a rank stores, of the last so many blocks; stored, in all. compute,
    master: bytes of an element that is used, and that is stored.
    """

    def __init__(
        self,
        placements: tuple[Sequence[Sequence[Placement]], Sequence[Placement]],
        head: Placement | None,
        grid: Grid,
        compute: int,
        master: int,
        overlap: Overlap,
        *,
        recomputed: bool,
        offloaded: bool = False,
    ) -> None:
        of_blocks, others = placements
        self._layers, self._shards, self._compute, self._recomputed = len(of_blocks), grid.shards, compute, recomputed
        kinds = {id(of): of for of in of_blocks}
        tiles = {kind: _Tiles.of(of, grid) for kind, of in kinds.items()}
        each, rest = [tiles[id(of)] for of in of_blocks], _Tiles.of(others, grid)
        self.blocks = [of.sharded for of in each]
        self._sums = [0.0, *accumulate(of.gathered for of in each)]
        self.table = rest.sharded[0] if rest.sharded else 0.0
        self.head = _tile(head, grid) if head else 0.0
        self.outside = rest.gathered
        self.stored_above = [0.0, *accumulate(of.stored for of in reversed(each))]
        self.stored = self.stored_above[-1] + rest.stored
        sharded = (self._sums[-1] + rest.gathered) / grid.shards
        self.offloaded = sharded if offloaded else 0.0
        """So many of these elements lie on the host in the master dtype."""
        gathers, self._narrow = grid.shards > 1, compute != master
        self._casts_sent = gathers and self._narrow and not offloaded
        self.casts = compute * (self.stored - sharded * self._casts_sent) if self._narrow else 0.0
        """A copy in the compute dtype is kept of all that isn't cast as it is sent."""
        self._gathers_again = grid.stages > 1 and not recomputed
        self._cached = min(overlap.cache, self._layers) if recomputed and gathers and overlap.cache != AUTO else 0
        self._depth = overlap.prefetch_depth if overlap.oag and gathers else 0

    def gathered(self, *tiles: float) -> float:
        """Count these weights, where they are sharded."""
        return self._compute * sum(tiles) if self._shards > 1 else 0.0

    def waiting(self, first: int, blocks: int) -> float:
        """Count what the first so many blocks keep gathered for their backward, from one of them on: nothing on a stage
        of a pipeline that recomputes none, whose backward gathers again.
        """
        return 0.0 if self._gathers_again else self.gathered(self._sums[blocks] - self._sums[first])

    def of_head(self) -> float:
        """Count what the last stage's head keeps gathered for its backward, in every pass that is in it."""
        return 0.0 if self._gathers_again else self.gathered(self.outside)

    def beside(self, tiles: Sequence[float]) -> float:
        """Count what a block's other weights keep gathered while one of its products is differentiated."""
        return 0.0 if self._gathers_again else self.gathered(*tiles)

    def cached(self, below: int) -> float:
        """Count what cache=N still holds for the recomputation of the first blocks."""
        uncached = self._layers - self._cached
        return self.gathered(self._sums[below] - self._sums[uncached]) if below > uncached else 0.0

    def ahead(self, below: int, now: Pass) -> float:
        """Count the next weights that oag gathers: for the recomputation of the first blocks, then for the next pass's
        forward, or its backward where no forward is to come. What each rank sends is counted where it is a cast.
        """
        gathers_again, uncached = self._recomputed or self._gathers_again, self._layers - self._cached
        tiles = self._before(min(below, uncached)) if gathers_again else []
        if now.followed:
            tiles += self.first(self._depth)
        elif gathers_again and not now.last:
            tiles += self._before(uncached)
        return sum(tiles[: self._depth]) * self._compute * (1 + self._casts_sent / self._shards)

    def _before(self, blocks: int) -> list[float]:
        """List the weights of the latest of the first so many blocks, as far as they are gathered ahead."""
        return list(chain.from_iterable(reversed(self.blocks[max(0, blocks - self._depth) : blocks])))

    def from_block(self, first: int, count: int) -> list[float]:
        """List the weights of so many blocks from one on, and of the head: their gradients come the latest first."""
        return [*chain.from_iterable(self.blocks[first : first + count]), self.head]

    def first(self, count: int) -> list[float]:
        """List the first weights that a pass uses, in that order. Their gradients come last, in the reverse order."""
        one = [self.table, *chain.from_iterable(self.blocks[:count]), self.head]
        return (one * (count // len(one) + 1))[:count]


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Elements of a rank's parts: sharded, of each weight that is sharded, before it is; gathered, their sum; stored,
    of all.
    """

    sharded: list[float]
    gathered: float
    stored: float

    @classmethod
    def of(cls, placements: Sequence[Placement], grid: Grid) -> "_Tiles":
        """Count those of these placements."""
        found = [(_tile(placement, grid), placement.sharded) for placement in placements]
        sharded = [tile for tile, is_sharded in found if is_sharded]
        stored = sum(tile / grid.shards if is_sharded else tile for tile, is_sharded in found)
        return cls(sharded, sum(sharded), stored)


def _tile(placement: Placement, grid: Grid) -> float:
    return prod(placement.shape) / prod(grid[axis] for axis in placement.split if axis)
