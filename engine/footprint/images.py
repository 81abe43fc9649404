"""The backward of a block on images goes through its operations from the last to the first. No torch in it.

Beside the gradient that flows through a branch waits that of what the branch began with.
"""

from collections.abc import Iterator

from engine.footprint.instant import Instant
from engine.footprint.rows import Rows
from engine.grid import INNER, STREAM
from engine.models.image_operations import Added, Conv2d, GroupNorm, Resample
from engine.models.network import Section
from engine.models.operations import Attention, Linear, Redistribute


class Backward:
    """It walks through a section. part: whether its output's gradient is a part of that of a later block's whole input,
    which is counted there.

    there: bytes of what is still kept. flowing: those of the gradient of what is next. beside: those of what waits.
    """

    def __init__(self, section: Section, rows: Rows, *, part: bool) -> None:
        sequence = rows.model.sequence
        self._rows, self._part = rows, part
        self._walk = [(operation, section.tokens_of(operation, sequence)) for operation in section.operations]
        self._there = sum(rows.kept(operation.kept.times(tokens)) for operation, tokens in self._walk)
        self._number = self._products = len(section.of_kind(Linear))
        output = section.output
        self._flowing = rows.carried(output) if output is not None and not part else 0.0
        self._beside = 0.0

    def instants(self) -> Iterator[Instant]:
        """Yield its moments."""
        aside = False
        for operation, tokens in reversed(self._walk):
            one = self._rows.features(tokens * getattr(operation, "features", 0), self._rows.grid[STREAM])
            match operation:
                case Added():
                    aside = operation.multiplied
                    self._beside, self._flowing = (one, self._flowing) if aside else (self._flowing, 0.0)
                case Redistribute():
                    yield from self._redistribute(operation.features * tokens, aside=aside)
                case Conv2d() if aside:
                    yield self._beside_branch(operation, tokens)
                    aside = False
                case Linear():
                    yield self._product(operation, tokens)
                case Resample():
                    yield self._at(one + self._flowing)
                    self._flowing = one
                case GroupNorm():
                    yield from self._norm(operation, tokens)
                case Attention():
                    inner = self._rows.features(tokens * operation.heads * operation.head_size, self._rows.grid[INNER])
                    yield self._at(5 * inner)
                    self._flowing = 3 * inner
            self._there -= self._rows.kept(operation.kept.times(tokens))
            if isinstance(operation, GroupNorm) and operation.split is STREAM:
                self._flowing, self._beside, self._part = one, 0.0, False  # here a branch began

    def _at(self, made: float, given: int | None = None, *, copied: bool = False) -> Instant:
        used = () if given is None else (given,)
        before = tuple(range(self._number + len(used), self._products))
        there = self._there + self._beside + made
        return Instant(there, self._number, used, before, given, copied)

    def _copy(self, num_bytes: float) -> float:
        """Count a copy of what several samples' pixels and channels would lie in one line for."""
        return num_bytes if self._rows.several else 0.0

    def _product(self, product: Linear, tokens: int) -> Instant:
        """Count both gradients. Of a part of a gradient a convolution takes a copy; of pixels that come channel by
        channel a product does; and on a processor oneDNN lays all that a convolution takes its own way.
        """
        self._number -= 1
        taken, given = self._rows.taken_and_given(product, tokens)
        convolves = isinstance(product, Conv2d)
        made = self._flowing + taken
        if convolves and self._part and not self._flowing:
            made += self._copy(given)
        if convolves and self._rows.on_cpu:
            made += given + taken
        if not convolves and product.split[0] is STREAM and tokens > 1:
            made += self._copy(given)
        if tokens > 1:  # what a sample has once isn't in the stream
            self._flowing = taken
        return self._at(made, self._number, copied=convolves)

    def _beside_branch(self, product: Conv2d, tokens: int) -> Instant:
        """Count the same of what is added to a branch, beside the gradient of that; that of what it takes waits."""
        self._number -= 1
        taken, given = self._rows.taken_and_given(product, tokens)
        made = self._flowing
        if self._rows.grid[INNER] > 1 or self._rows.grid[STREAM] > 1:
            made += given
        elif self._part:
            made += self._copy(given)
        if self._rows.on_cpu:
            made += given + taken
        return self._at(made, self._number, copied=True)

    def _redistribute(self, features: float, *, aside: bool) -> Iterator[Instant]:
        """Count what is gathered, the same in order, and what is cut from it (layers/redistribute.py)."""
        whole, cut = self._rows.features(features), self._rows.features(features, self._rows.grid[INNER])
        made = cut if self._rows.grid[INNER] > 1 else 0.0
        if self._rows.grid[STREAM] > 1:
            made += whole + self._copy(whole)
        if made:
            instant = self._at(self._flowing + made)
            yield instant._replace(activations=instant.activations - (self._beside if aside else 0.0))
            self._flowing = self._flowing if aside else cut

    def _norm(self, norm: GroupNorm, tokens: int) -> Iterator[Instant]:
        """Count the backward of the SiLU, and of the norm itself, which takes a copy of what attention gives back by
        pixels.
        """
        rows, whole = self._rows, norm.whole(self._rows.grid)
        one = rows.features(tokens * norm.features, rows.grid[norm.split])
        freed = 0.0
        if norm.silu:
            yield self._at(2 * one)
            freed += one
        own = 2 * one * rows.master / rows.compute if rows.narrow and rows.on_cpu and not whole else one
        yield self._at(one + own + (0.0 if norm.silu else one) - freed)
        self._flowing = one
