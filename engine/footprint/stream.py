"""What blocks give to one another is counted in numbers of a sample: the stream, and what is left for later blocks.

A tensor is the same where it is one block's output, the next one's input, and what is left. No torch in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from engine.models.network import Network


@dataclass(frozen=True, slots=True)
class Skip:
    """A block takes what an earlier block has left, the stream at that boundary, and joins it to so many numbers."""

    boundary: int
    joined: int


class Stream:
    """It knows a network's boundaries: one before each block, and one behind the last.

    numel: of the stream there. whole: of all that is carried there. skips: of each block, what it takes; None where it
    takes nothing. left: boundaries whose streams are still to be taken there.
    """

    def __init__(self, network: Network) -> None:
        boundaries = network.boundaries
        sizes = [[prod(carried.shape) for carried in boundary] for boundary in boundaries]
        self.numel = [of[0] for of in sizes]
        self.whole = [sum(of) for of in sizes]
        sections = [section for section, _ in network.blocks]
        takes = sum(section.takes is not None for section in sections)
        leaves = sum(section.leaves for section in sections)
        self.left: list[tuple[int, ...]] = [(0,) * (takes - leaves)]
        self.skips: list[Skip | None] = []
        for number, section in enumerate(sections):
            left, skip = self.left[-1], None
            if section.takes is not None:
                *rest, boundary = left
                skip, left = Skip(boundary, self.numel[number] + prod(section.takes.shape)), tuple(rest)
            self.skips.append(skip)
            self.left.append((*left, number + 1) if section.leaves else left)

    def inputs(self, blocks: Sequence[int], group: int) -> list[int]:
        """Count what recomputation keeps of the first of these blocks, from none to all: inputs of each group of so
        many, and what is left there for later ones.
        """
        found, kept, count = [0], set[int](), 0
        for place, number in enumerate(blocks):
            for boundary in (number, *self.left[number]) if place % group == 0 else ():
                count += self.numel[boundary] if boundary not in kept else 0
                kept.add(boundary)
            found.append(count)
        return found

    def gradients(self, blocks: Sequence[int]) -> list[int]:
        """Count the gradients that are there when each of these blocks begins its backward: its output's, and those of
        what later ones took of what earlier ones have left. Such a one is a part of the gradient of a block's whole
        input, which is there as long; where that has the output's gradient, too, it counts once.
        """
        if not any(self.skips):
            return [self.numel[number + 1] for number in blocks]
        found, taken = [0] * len(blocks), list[Skip]()
        for place in reversed(range(len(blocks))):
            number = blocks[place]
            above = self.skips[number + 1] if place + 1 < len(blocks) else None
            taken += [above] if above is not None else []
            taken = [skip for skip in taken if skip.boundary <= number]
            found[place] = sum(skip.joined for skip in taken) + (self.numel[number + 1] if above is None else 0)
        return found
