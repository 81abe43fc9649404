"""What blocks give to one another is counted in numbers of a sample: the stream, and what is left for later blocks.

A tensor is the same where it is one block's output, the next one's input, and what is left. No torch in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from engine.models.network import Network


@dataclass(frozen=True, slots=True)
class Taken:
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
        self.left: list[tuple[int, ...]] = [()]
        self.skips: list[Taken | None] = []
        for number, section in enumerate(sections):
            left, skip = (*self.left[-1], *((number,) if section.leaves else ())), None
            if section.takes is not None:
                *rest, boundary = left
                skip, left = Taken(boundary, self.numel[number] + prod(section.takes.shape)), tuple(rest)
            self.skips.append(skip)
            self.left.append(left)
        self._skips = any(self.skips)

    def of_stage(self, chunks: Sequence[range], group: int) -> "OfStage":
        """Count for a stage that has these chunks of blocks, so many of which are recomputed together; none if 0."""
        blocks = [number for chunk in chunks for number in chunk]
        from_others = [chunk.start for chunk in chunks if chunk.start]
        to_others = [chunk.stop for chunk in chunks if chunk.stop < len(self.skips)]
        entering, leaving = (max((self.whole[at] for at in some), default=0) for some in (from_others, to_others))
        return OfStage(
            blocks,
            [self.numel[number] for number in blocks],
            [self.skips[number] is not None for number in blocks],
            sum(self._entered(start, recomputed=group > 0) for start in from_others),
            self._inputs(blocks, group) if group else [],
            [waiting for chunk in chunks for waiting in self._waiting(chunk)],
            [part for chunk in chunks for part in self._parts(chunk)],
            entering + leaving,
        )

    def _entered(self, start: int, *, recomputed: bool) -> int:
        """Count what comes in a message besides what blocks keep of it: all of it is there as long as any is."""
        if recomputed:
            return self.whole[start] - sum(self.numel[boundary] for boundary in {start, *self.left[start]})
        return self.whole[start] - (0 if self.skips[start] else self.numel[start])

    def _inputs(self, blocks: Sequence[int], group: int) -> list[int]:
        if not self._skips:
            return [0, *accumulate(0 if place % group else self.numel[number] for place, number in enumerate(blocks))]
        found, kept, count = [0], set[int](), 0
        for place, number in enumerate(blocks):
            for boundary in (number, *self.left[number]) if place % group == 0 else ():
                count += self.numel[boundary] if boundary not in kept else 0
                kept.add(boundary)
            found.append(count)
        return found

    def _shared(self, stop: int) -> bool:
        """Say whether the gradient of the stream there comes from another stage, and in one message with others."""
        return stop < len(self.skips) and self.whole[stop] > self.numel[stop]

    def _parts(self, chunk: range) -> list[bool]:
        if not self._skips:
            return [False] * len(chunk)
        return [self.skips[number] is not None for number in chunk[1:]] + [self._shared(chunk.stop)]

    def _waiting(self, chunk: range) -> list[int]:
        message = self.whole[chunk.stop] if self._shared(chunk.stop) else 0
        found, taken = [message] * len(chunk), list[Taken]()
        for place in reversed(range(len(chunk)) if self._skips else ()):
            above = self.skips[chunk[place + 1]] if place + 1 < len(chunk) else None
            taken += [above] if above is not None else []
            taken = [skip for skip in taken if skip.boundary <= chunk[place]]
            found[place] += sum(skip.joined for skip in taken)
        return found


@dataclass(frozen=True, slots=True)
class OfStage:
    """It has numbers of a sample for a stage's blocks.

    streams: of each one's input. joins: whether that is joined with what it takes. entered: what comes from other
    stages, besides what blocks keep. inputs: what recomputation keeps of the first blocks, from none to all: inputs of
    groups, and what is left there for later ones. waiting: in each one's backward, gradients for others of what later
    ones took, each a part of the gradient of a block's whole input, or of a message, which is there as long. parts:
    whether its output's gradient is a part of such a one, too. messages: in one from each neighbour.
    """

    blocks: list[int]
    streams: list[int]
    joins: list[bool]
    entered: int
    inputs: list[int]
    waiting: list[int]
    parts: list[bool]
    messages: int
