"""Sides take turns, round by round, so that whatever disturbs a machine for longer than a round disturbs all alike."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")
TurnOrder = Callable[[int, Sequence[T]], Sequence[T]]
"""Order of the sides in the round of a number, counted from 0."""


def take_turns(
    sides: Sequence[T], rounds: int, order: TurnOrder[T], begin: Callable[[int], bool] = lambda number: True
) -> Iterator[tuple[int, T]]:
    """Yield each side's turn with its round's number, counted from 0.

    begin: called before each round; where it returns False, that round and all later ones are left out.
    """
    for number in range(rounds):
        if not begin(number):
            return
        for side in order(number, sides):
            yield number, side


def shuffled(drawing: random.Random) -> Callable[[int, Sequence[T]], Sequence[T]]:
    """Return an order that is drawn anew for each round; the same seed draws the same on all ranks."""
    return lambda number, sides: drawing.sample(sides, len(sides))


def alternating(number: int, sides: Sequence[T]) -> Sequence[T]:
    """Return the sides as they are, and the other way round in every other round."""
    return sides if number % 2 == 0 else sides[::-1]
