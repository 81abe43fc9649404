"""Weight gradients on their way to their sums are counted in bytes of one rank. No torch in it.

The backward makes a contribution, casts it if it travels in another dtype, and gives it to a reduce-scatter, of which
the last few are in flight with ors (overlap/reduction.py). Sums over model replicas travel in copies, unless they are
made in the dtype that the buffer has (overlap/reduction.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.footprint.weights import Pass, Weights
from engine.grid import Grid
from engine.overlap.flags import Overlap


@dataclass(frozen=True, slots=True)
class Gradients:
    """It counts those of one rank. Bytes of an element: scattered, in a reduce-scatter; summed, in the sum over model
    replicas; kept, where it is accumulated.

    on_cpu: over gloo, whose reduce-scatter is an exchange into a second buffer and a sum (comm/gloo.py). deferred:
    whether they are made later, so that a backward has those of the pass before in flight alone.
    """

    weights: Weights
    grid: Grid
    overlap: Overlap
    scattered: int
    summed: int
    kept: int
    on_cpu: bool
    deferred: bool = False

    def given(self, tile: float, dtype: int, now: Pass, *, copied: bool = False) -> float:
        """Count a contribution that is made in a dtype of so many bytes, and given to its sum. copied: whether it is
        made for itself, and then put where it belongs.

        One that isn't sent is made in its place, or else added to that, for which a processor casts it first.
        """
        if self.deferred:
            return 0.0
        in_place = self.grid.shards == 1 and dtype == self.kept
        alone = tile * dtype * (1 if in_place else 2) if copied else 0.0
        made = tile * dtype if dtype != self.scattered else 0.0
        if self.grid.shards > 1:
            return max(alone, made + tile * self._of_flight(now.number))
        if in_place:
            return alone
        added = tile * self.kept if self.on_cpu and now.number and self.scattered != self.kept else 0.0
        return max(alone, made + tile * self.scattered + added)

    def in_flight(self, made: Sequence[float], now: Pass) -> float:
        """Count the latest contributions. made: by this pass so far, latest first; the pass before made the others."""
        own = [] if self.deferred else made[: self._window]
        flights = sum(own) * self._of_flight(now.number)
        if now.number and len(own) < self._window:
            earlier = self.weights.first(self._window - len(own))
            flights += sum(earlier) * self._of_flight(now.number - 1)
        return flights

    def made_from(self, block: int) -> list[float]:
        """List what the head and the blocks from one on make, as far as it can be in flight, the latest first."""
        return self.weights.from_block(block, self._window)

    def summing(self, blocks: int, now: Pass) -> float:
        """Count copies of the last so many blocks that are summed over model replicas already: whole buckets."""
        if self.deferred or not (now.last and self.overlap.data and self._copied):
            return 0.0
        bucket = self.overlap.bucket(self.grid)
        return self.weights.stored_above[blocks] * self.summed // bucket * bucket

    def at_end(self) -> float:
        """Count the copies that are summed over model replicas at the end of the step."""
        return self.summed * self.weights.stored if self._copied else 0.0

    @property
    def _copied(self) -> bool:
        return self.grid.model_replicas > 1 and self.summed != self.kept

    @property
    def _window(self) -> int:
        return self.overlap.reduce_window if self.overlap.ors and self.grid.shards > 1 else 0

    def _of_flight(self, number: int) -> float:
        """Count the bytes of an element in flight: what is sent, what comes in, and the sum. In the first pass the sum
        has its place already, where it has the same dtype.
        """
        placed = number == 0 and self.scattered == self.kept
        return self.scattered * ((2 if self.on_cpu else 1) + (0 if placed else 1 / self.grid.shards))
