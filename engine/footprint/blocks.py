"""A block's backward goes through moments, which differ in what they have of activations and weights. No torch in it.

A block of a transformer ends with a feed-forward, two products with an activation function between, in which its
fullest moments are. Of other blocks all operations are looked at, from the last to the first.
"""

from collections.abc import Iterator
from typing import NamedTuple

from engine.footprint.images import Backward
from engine.footprint.instant import Instant
from engine.footprint.rows import Rows
from engine.grid import INNER
from engine.models.network import Section
from engine.models.operations import Activation, Linear, Norm


class BlockBytes(NamedTuple):
    """kept: for the backward, the input included. left: by a backward for weight gradients, which is input and output
    gradient of each product.
    """

    kept: float
    left: float
    instants: tuple[Instant, ...]


def describe(section: Section, rows: Rows, *, part: bool, deferring: bool) -> BlockBytes:
    """Count one repeat of a section. part: whether its output's gradient is counted as a later block's. deferring:
    whether its backward leaves weight gradients.
    """
    kept = kept_by(section, rows)
    if section.of_kind(Norm):
        of = _of_transformer(section, rows, kept, deferring=deferring)
    else:
        of = Backward(section, rows, part=part).instants()
    return BlockBytes(kept, left(section, rows), tuple(of))


def kept_by(section: Section, rows: Rows) -> float:
    """Count what a section keeps for its backward."""
    sequence = rows.model.sequence
    return rows.kept(section.kept(sequence))


def of_head(section: Section, rows: Rows) -> tuple[Instant, ...]:
    """List the backward of the product behind the blocks, and of the norm before that, besides what is kept."""
    if not section.of_kind(Norm):
        kept, walk = kept_by(section, rows), Backward(section, rows, part=False)
        return tuple(at._replace(activations=at.activations - kept) for at in walk.instants())
    share = section.tokens_of(section.operations[-1], rows.model.sequence) / rows.model.sequence
    norm = rows.made_by_norm(section.of_kind(Norm)[-1].kind)
    return Instant(rows.stream * share, 0, (0,), (), 0), Instant(norm * share, 0, (), (0,))


def left(section: Section, rows: Rows) -> float:
    """Count what a section's backward leaves for its weight gradients."""
    products = section.of_kind(Linear)
    return sum(sum(rows.taken_and_given(of, section.tokens_of(of, rows.model.sequence))) for of in products)


def _of_transformer(section: Section, rows: Rows, kept: float, *, deferring: bool) -> Iterator[Instant]:
    """Yield the backward from its end: of a norm behind the feed-forward, of the second product, of the activation
    function, of the first product, and of the norm before that.
    """
    norm_last = isinstance(section.operations[-1], Norm)
    *_, first, activation, last = section.operations[:-1] if norm_last else section.operations
    assert isinstance(first, Linear)
    assert isinstance(activation, Activation)
    assert isinstance(last, Linear)
    norm = rows.made_by_norm(section.of_kind(Norm)[-1].kind)
    count = len(section.of_kind(Linear))
    others, up, down = count - 2, count - 2, count - 1

    def inner(features: int) -> float:
        return rows.features(rows.model.sequence * features, rows.grid[INNER])

    here = kept + rows.stream  # and its output's gradient
    without = here - inner(activation.kept.over_inner + last.kept.over_inner)  # what the first product gives and later
    if norm_last:
        yield Instant(here + norm, others)
    yield Instant(here + inner(last.k), others, (up, down), (), down)
    if deferring:
        without += inner(last.k)  # what the second product is of is left
    yield Instant(without + inner(activation.in_backward), others, (up,), (down,))
    yield Instant(without + inner(first.n) + rows.stream, others, (up,), (down,), up)
    if deferring:
        without += inner(first.n)
    yield Instant(without + norm, others, (), (up, down))
