"""Cut: which part of a network each stage of a pipeline holds, as many blocks as it has time for.

What comes before the blocks is on the first stage, what comes after them on the last, and both take time of their own,
as their flops say. So a stage may have fewer blocks than another. No torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain
from math import prod

from engine.errors import UsageError
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.flops import split_step_flops
from engine.models.network import Network
from engine.placement import Placement


@dataclass(frozen=True, slots=True)
class Cut:
    """Blocks of the stages.

    Chunks follow one another stage by stage: the first of every stage, then the second of every stage. What comes
    before the blocks is the first stage's, what comes after them the last one's.
    """

    blocks: tuple[tuple[range, ...], ...]
    """Blocks of each chunk of each stage."""

    @classmethod
    def none(cls, layers: int) -> "Cut":
        """Leave a network whole. layers: its blocks."""
        return cls(((range(layers),),))

    @property
    def stages(self) -> int:
        return len(self.blocks)

    @property
    def chunks(self) -> int:
        """Chunks of a stage."""
        return len(self.blocks[0])

    @property
    def in_order(self) -> list[range]:
        """Blocks of all chunks in the network's order."""
        return [stage[chunk] for chunk in range(self.chunks) for stage in self.blocks]

    def sent(self, network: Network, grid: Grid) -> list[float]:
        """Count the elements of a sample that a rank sends of what each chunk takes, and of what comes out of the last;
        of ranks that have the same ones each sends a part of them.
        """
        places = [*(blocks.start for blocks in self.in_order), len(network.blocks)]
        return [sum(prod(part.shape) for part in network.boundaries[place]) / grid.plane for place in places]

    def owners(self, network: Network) -> dict[str, int]:
        """Return the stage of each parameter by name; of a tied one the first that has it."""
        stages = reversed(range(self.stages))
        return {placed.name: stage for stage in stages for placed in self.held(network, stage)}

    def held(self, network: Network, stage: int) -> list[Placement]:
        """List the placements of what a stage holds."""
        return network.part(chain(*self.blocks[stage]), first=stage == 0, last=stage == self.stages - 1)

    def parameters(self, network: Network, stage: int) -> Mapping[str, bool]:
        """Return whether each parameter of a stage is its own: of a tied one the last stage has a copy."""
        owners = self.owners(network)
        return {placed.name: owners[placed.name] == stage for placed in self.held(network, stage)}


def cut_evenly(model: Architecture, stages: int, chunks: int = 1, *, recomputed: int) -> Cut:
    """Cut so that the slowest part takes the least time, and of such ways most evenly; later parts have what is over.

    recomputed: blocks, the first ones, that run forward once more in the backward. Raises UsageError with fewer blocks
    than parts.
    """
    _check_blocks(model, stages, chunks)
    before, blocks, after = split_step_flops(model, recomputed=recomputed)
    fairest = _fairest if len(set(blocks)) == 1 else _fairest_of_unlike
    return _as_cut(fairest(before, tuple(blocks), after, stages * chunks), stages)


@cache
def _fairest(before: int, blocks: Sequence[int], after: int, parts: int) -> Sequence[int]:
    """Share out blocks of equal flops fairly. before, after: flops around all of them."""

    def slowness(counts: Sequence[int]) -> tuple[int, int]:
        flops = [count * blocks[0] for count in counts]
        flops[0] += before
        flops[-1] += after
        return max(flops), sum(each * each for each in flops)

    return min(_ways(len(blocks), parts), key=slowness)


@cache
def _fairest_of_unlike(before: int, blocks: Sequence[int], after: int, parts: int) -> Sequence[int]:
    """Share out blocks of any flops fairly: the best way of some builds on the best ways of fewer."""
    flops = [before + done for done in accumulate(blocks)]
    flops[-1] += after

    @cache
    def best(count: int, parts: int) -> tuple[int, int, tuple[int, ...]]:
        """Return the flops of the slowest part, the sum of squares, and the blocks of each part."""
        if parts == 1:
            return flops[count - 1], flops[count - 1] ** 2, (count,)
        ways: list[tuple[int, int, tuple[int, ...]]] = []
        for fewer in range(parts - 1, count):
            most, squares, counts = best(fewer, parts - 1)
            last = flops[count - 1] - flops[fewer - 1]
            ways.append((max(most, last), squares + last**2, (*counts, count - fewer)))
        return min(ways)

    return best(len(blocks), parts)[2]


def cut_by_hand(given: str, model: Architecture, stages: int, chunks: int = 1) -> Cut:
    """Cut as --stages says, such as 5,7,7,5: blocks of each part, in the network's order. Raises UsageError unless all
    blocks are shared out among all parts.
    """
    layers, parts = model.layers, stages * chunks
    _check_blocks(model, stages, chunks)
    counts = [int(count) if count.isdecimal() else 0 for count in given.replace(" ", "").split(",")]
    if len(counts) != parts or min(counts) < 1 or sum(counts) != layers:
        raise UsageError(
            f"--stages {given!r} doesn't cut {layers} blocks into {_parts(stages, chunks)}: give {parts} numbers from "
            f"1, whose sum is {layers}, such as {','.join(map(str, _spread(layers, parts)))}."
        )
    return _as_cut(counts, stages)


def _check_blocks(model: Architecture, stages: int, chunks: int) -> None:
    if model.layers < stages * chunks:
        blocks = "1 block, which" if model.layers == 1 else f"{model.layers} blocks, which"
        more = ", or more --layers" if "layers" in model.options else ""
        raise UsageError(
            f"The network has {blocks} can't be cut into {_parts(stages, chunks)}: each takes a block, so give a "
            f"smaller --pipe{' or --chunks' if chunks > 1 else ''}{more}."
        )


def _parts(stages: int, chunks: int) -> str:
    return f"{stages} stages" if chunks == 1 else f"{stages} stages of {chunks} chunks"


def _ways(layers: int, parts: int) -> Iterator[list[int]]:
    """List ways, one of them the best: any number of blocks on the first and last part, and even ones between."""
    if parts == 1:
        yield [layers]
        return
    between = parts - 2
    for first in range(1, layers - between):
        lasts = range(1, layers - between - first + 1) if between else [layers - first]
        for last in lasts:
            yield [first, *_spread(layers - first - last, between), last]


def _spread(layers: int, parts: int) -> list[int]:
    return [layers * (part + 1) // parts - layers * part // parts for part in range(parts)]


def _as_cut(counts: Sequence[int], stages: int) -> Cut:
    ends = [sum(counts[: part + 1]) for part in range(len(counts))]
    ranges = [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
    return Cut(tuple(tuple(ranges[stage::stages]) for stage in range(stages)))
