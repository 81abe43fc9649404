"""Rows of the global batch by rank, and rows of a tensor in chunks. No torch."""

from collections.abc import Iterator
from dataclasses import dataclass

from engine.errors import UsageError, listed_divisors
from engine.grid import SPLITTING_ROWS, Coords, Grid


@dataclass(frozen=True, slots=True)
class Batch:
    """Sequences of a training step."""

    sequences: int
    """sequences of a step, all ranks together"""
    micro: int | None = None
    """sequences a rank takes at once (default: its share)"""

    def per_rank(self, grid: Grid) -> int:
        return self.sequences // grid.batch_split

    def at_once(self, grid: Grid) -> int:
        """Count the sequences of one rank in a micro-batch."""
        return self.micro or self.per_rank(grid)

    def check(self, grid: Grid) -> None:
        """Raise UsageError unless the grid splits the batch evenly, and micro-batches a rank's share."""
        if self.sequences < 1 or self.sequences % grid.batch_split:
            fitting = max(1, -(-self.sequences // grid.batch_split)) * grid.batch_split
            raise UsageError(
                f"Grid {grid} splits the batch over {' and '.join(SPLITTING_ROWS)} into {grid.batch_split} parts, but "
                f"a batch of {self.sequences} sequences is not a multiple of that: use --batch-size {fitting}."
            )
        share = self.per_rank(grid)
        if self.micro is not None and (self.micro < 1 or share % self.micro):
            raise UsageError(
                f"A rank of grid {grid} has {share} of the {self.sequences} sequences, which micro-batches of "
                f"{self.micro} don't divide: use --micro-batch one of {listed_divisors(share)}."
            )

    def rows(self, grid: Grid, coords: Coords) -> range:
        """Return the sequences of the rank at coords, in shares by rank. Raises UsageError if the batch can't be split
        evenly.
        """
        self.check(grid)
        share = self.per_rank(grid)
        first = grid.position(coords, SPLITTING_ROWS) * share
        return range(first, first + share)

    def micro_batches(self, grid: Grid, coords: Coords) -> list[range]:
        """Cut the rank's sequences into those of each micro-batch."""
        rows = self.rows(grid, coords)
        size = self.micro or len(rows)
        return [range(start, start + size) for start in range(rows.start, rows.stop, size)]


CHUNK_BYTES = {"cpu": 2**21, "cuda": 2**28}
"""A processor's second cache, and what keeps a GPU busy."""
ALIGNED = 16
"""Rows after which 16 bytes begin anew, whatever a row takes: compiled code copies tensors that begin elsewhere."""


def chunks(rows: int, row_bytes: int, device: str) -> Iterator[slice]:
    """Yield slices of at most CHUNK_BYTES, but at least one row; of many rows, a multiple of ALIGNED.

    >>> list(chunks(5, 2**20, "cpu"))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    step = max(1, CHUNK_BYTES.get(device, CHUNK_BYTES["cuda"]) // row_bytes)
    step -= step % ALIGNED if step > ALIGNED else 0
    return (slice(first, first + step) for first in range(0, rows, step))
