"""A rank's step can be fullest at one of these moments. No torch in it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from engine.footprint.activations import Activations
from engine.footprint.gradients import Gradients
from engine.footprint.held import Held
from engine.footprint.instant import Instant
from engine.footprint.weights import Pass, Weights, fullest_passes

Moment = tuple[float, float, float, float, float]
"""A moment has activations, weights, cache, logits and gradients, as Needs does, but for what is always there."""


@dataclass(frozen=True, slots=True)
class Moments:
    """It lists them. group: so many blocks are recomputed together. alike: whether all blocks are."""

    stage: Held
    group: int
    compute: int
    master: int
    activations: Activations
    weights: Weights
    gradients: Gradients
    alike: bool

    def of_step(self, micro_batches: float) -> Iterator[Moment]:
        """Yield the loss and the head's backward; the backward of the last block, of the one before it, which begins
        with more gradients on their way, and of the first; of the last block of the second last group, which may be
        larger than the last one, and of the first; that of the token table; the weight gradients, where the backward
        leaves them; the sum over model replicas.
        """
        passes = fullest_passes(micro_batches * len(self.stage.chunks), alone=self.stage.of_step == 1)
        for now in map(self.stage.of_pass, passes):
            kept, gathered, cached = self.stage.beside(now, self.activations, self.weights)
            for moment in self._of_pass(now):
                yield kept + moment[0], gathered + moment[1], cached + moment[2], *moment[3:]
        yield 0.0, 0.0, 0.0, 0.0, self.gradients.at_end()

    def _of_pass(self, now: Pass) -> Iterator[Moment]:
        if self.stage.is_last:
            yield from self._at_head(now)
        last = self.stage.blocks - 1
        ends = {last, last - 1, 0, self._from(last) - 1, min(self.group - 1, last)}
        for index in ends if self.alike else range(last + 1):
            if index >= 0:
                yield from self._in_block(index, now)
        if self.stage.is_first:
            yield self._at_table(now)
        if self.stage.deferring:
            yield from self._in_weight_task(now)

    def _at_head(self, now: Pass) -> Iterator[Moment]:
        """Yield the loss, and the backward of what is behind the blocks."""
        act, weights, gradients, blocks = self.activations, self.weights, self.gradients, self.stage.blocks
        kept, tiles = act.kept(blocks) + act.kept_of_head(), [weights.head]
        held = weights.waiting(0, 0 if self.group else blocks) + weights.ahead(blocks, now)
        cache, before = weights.cached(blocks), gradients.in_flight([], now)
        yield kept, held + weights.gathered(weights.head), cache, act.logits() + act.made_by_loss(), before
        for instant in act.head:
            logits = act.logits() if instant.given is not None else 0.0
            left = self._left(blocks) if instant.given is None else 0.0
            gathered, sent = self._weights_of(instant, tiles, [], now)
            yield kept + instant.activations + left, held + gathered, cache, logits, sent

    def _in_block(self, index: int, now: Pass) -> Iterator[Moment]:
        """Yield a block's backward."""
        act, weights, gradients = self.activations, self.weights, self.gradients
        first, above = self._from(index), self.stage.blocks - 1 - index
        block, tiles = act.blocks[index], weights.blocks[index]
        kept = act.in_backward(index, first) + act.waiting[index] + self._left(index + 1)
        held = weights.waiting(first, index) + weights.ahead(first, now)
        cache, made = weights.cached(first), gradients.made_from(index + 1)
        summing = gradients.summing(above, now)
        for instant in block.instants:
            gathered, sent = self._weights_of(instant, tiles, made, now)
            yield kept + instant.activations, held + gathered, cache, 0.0, sent + summing

    def _weights_of(self, at: Instant, tiles: Sequence[float], above: list[float], now: Pass) -> tuple[float, float]:
        """Count weights that are gathered, and gradients on their way. above: those that were made before."""
        weights, gradients = self.weights, self.gradients
        gathered = weights.beside(tiles[: at.waiting]) + weights.gathered(*(tiles[number] for number in at.used))
        sent = 0.0 if at.given is None else gradients.given(tiles[at.given], self.compute, now, copied=at.copied)
        flights = gradients.in_flight([*(tiles[number] for number in at.made), *above], now)
        return gathered, sent + flights

    def _from(self, index: int) -> int:
        """Give the first block of those up to this one whose weights and activations are there with this one's."""
        return index // self.group * self.group if self.group else 0

    def _at_table(self, now: Pass) -> Moment:
        """Count the backward of the token table, whose many rows are summed in the master dtype."""
        weights, gradients = self.weights, self.gradients
        sent = gradients.given(weights.table, self.master, now)
        flights = gradients.in_flight(gradients.made_from(0), now) + gradients.summing(self.stage.blocks, now)
        made = self.activations.made_by_table() + self._left(0)
        return made, weights.ahead(0, now), 0.0, 0.0, sent + flights

    def _left(self, first: int) -> float:
        """Count what a backward that defers weight gradients has left of the blocks from one on, and of the head."""
        return self.stage.left(self.activations, first) if self.stage.deferring else 0.0

    def _in_weight_task(self, now: Pass) -> Iterator[Moment]:
        """Yield the weight gradients of the head, of the first block, of whose pass all is left, and of the table."""
        weights, gradients = self.weights, replace(self.gradients, deferred=False)
        left, blocks = self._left(0), self.stage.blocks
        of_block = [(tile, self.compute, blocks - 1) for tile in weights.blocks[0]]
        for tile, dtype, above in [(weights.head, self.compute, 0), *of_block, (weights.table, self.master, blocks)]:
            made = gradients.made_from(blocks - above) if above else []
            sums = gradients.in_flight(made, now) + gradients.summing(above, now)
            yield left, weights.ahead(0, now), 0.0, 0.0, gradients.given(tile, dtype, now) + sums
