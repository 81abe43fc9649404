"""A section's backward goes through moments, which have different activations and weights. No torch in it."""

from typing import NamedTuple


class Instant(NamedTuple):
    """activations: bytes of what is there of a block, and of what its backward makes. waiting: so many of the block's
    first weights are still to be used. Others go by their numbers in the order of their use: those that are in use,
    those whose gradients were made before, and the one whose is made. copied: whether that is made for itself first,
    and then put where it belongs.
    """

    activations: float
    waiting: int
    used: tuple[int, ...] = ()
    made: tuple[int, ...] = ()
    given: int | None = None
    copied: bool = False
