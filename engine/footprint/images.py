"""The backward of a block on images goes through its operations from the last to the first. No torch in it.

Beside that of a branch waits the gradient of what it began with.
"""

from collections.abc import Iterator

from engine.footprint.instant import Instant
from engine.footprint.rows import Rows
from engine.grid import INNER, STREAM
from engine.models.image_operations import Added, Conv2d, GroupNorm
from engine.models.network import Section
from engine.models.operations import Attention, Linear, Operation


def kept_of(operation: Operation, rows: Rows, tokens: int) -> float:
    """Count the bytes of what an operation keeps: what is scaled by samples isn't where ranks share a group."""
    kept = rows.kept(operation.kept.of(tokens))
    if isinstance(operation, GroupNorm) and operation.scaled and not operation.whole(rows.grid):
        kept -= rows.features(tokens * operation.features, rows.grid[operation.split])
    return kept


def of_images(section: Section, rows: Rows) -> Iterator[Instant]:
    """Yield the backward of a section, besides the gradient of its output."""
    sequence = rows.model.sequence
    walk = [(operation, section.tokens_of(operation, sequence)) for operation in section.operations]
    kept = sum(kept_of(operation, rows, tokens) for operation, tokens in walk)
    number, last = len(section.of_kind(Linear)), len(section.of_kind(Linear))
    beside = 0.0
    for operation, tokens in reversed(walk):
        made = tuple(range(number, last))
        if isinstance(operation, Added):
            beside = rows.features(tokens * operation.features, rows.grid[STREAM])
        elif isinstance(operation, Linear):
            number -= 1
            taken, given = rows.taken_and_given(operation, tokens)
            copied = isinstance(operation, Conv2d) and operation.kernel > 1
            yield Instant(kept + beside + given + taken, number, (number,), made, number, copied)
        elif isinstance(operation, GroupNorm):
            yield from _of_norm(operation, rows, tokens, kept + beside, number, made)
        elif isinstance(operation, Attention):
            inner = rows.features(tokens * operation.heads * operation.head_size, rows.grid[INNER])
            yield Instant(kept + beside + 5 * inner, number, (), made)
        kept -= kept_of(operation, rows, tokens)


def _of_norm(
    norm: GroupNorm, rows: Rows, tokens: int, there: float, number: int, made: tuple[int, ...]
) -> Iterator[Instant]:
    """Yield the backward of the SiLU, of scaling, and of the norm itself."""
    one = rows.features(tokens * norm.features, rows.grid[norm.split])
    if norm.silu:
        yield Instant(there + 2 * one, number, (), made)
        there -= one
    if norm.scaled and norm.whole(rows.grid):
        yield Instant(there + 4 * one, number, (), made)
        there -= one
    wide = one * rows.master / rows.compute
    own = one if norm.whole(rows.grid) else 2 * wide + (one if rows.narrow else 0.0)
    yield Instant(there + one + own, number, (), made)
