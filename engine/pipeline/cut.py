"""A cut says which part of a network each stage of a pipeline holds. No torch in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.models.network import Network


@dataclass(frozen=True, slots=True)
class Cut:
    """blocks: of every stage, for each of its chunks, the blocks that it runs.

    Chunks follow one another stage by stage: the first of every stage, then the second of every stage. What comes
    before the blocks is the first stage's, what comes after them the last one's.
    """

    blocks: tuple[tuple[range, ...], ...]

    @classmethod
    def none(cls, layers: int) -> "Cut":
        """Leave a network of so many blocks whole."""
        return cls(((range(layers),),))

    @property
    def stages(self) -> int:
        """Count the stages."""
        return len(self.blocks)

    @property
    def chunks(self) -> int:
        """Count the chunks of a stage."""
        return len(self.blocks[0])

    def begins(self, stage: int, chunk: int) -> bool:
        """Say whether a chunk is the network's first."""
        return stage == chunk == 0

    def ends(self, stage: int, chunk: int) -> bool:
        """Say whether a chunk is the network's last."""
        return (stage, chunk) == (self.stages - 1, self.chunks - 1)

    def after(self, stage: int, chunk: int) -> tuple[int, int]:
        """Give the stage and the chunk to which a chunk's output goes."""
        return (stage + 1, chunk) if stage + 1 < self.stages else (0, chunk + 1)

    def before(self, stage: int, chunk: int) -> tuple[int, int]:
        """Give the stage and the chunk from which a chunk's input comes."""
        return (stage - 1, chunk) if stage else (self.stages - 1, chunk - 1)

    def owners(self, network: Network) -> dict[str, int]:
        """Give the stage of each parameter by name; of a tied one the first that has it."""
        of_block = {number: stage for stage, chunks in enumerate(self.blocks) for blocks in chunks for number in blocks}
        found: dict[str, int] = {}
        owner = 0
        for section, number in network.repeats():
            if section.recomputed:
                owner = of_block[number]
            elif found:
                owner = self.stages - 1
            found |= {placed.name: owner for placed in section.placements(number)}
        return found

    def held(self, network: Network, stage: int) -> Mapping[str, bool]:
        """Name the parameters that a stage holds, and say whether they are its own: of a tied one the last stage holds
        a copy.
        """
        owners = self.owners(network)
        names = {name: True for name, owner in owners.items() if owner == stage}
        if stage == self.stages - 1:
            ends = {placed.name for placed in network.stages[-1].placements()}
            ends |= {first for second, first in network.ties.items() if second.rpartition(".")[0] == network.head.name}
            names |= {name: owners[name] == stage for name in owners if name in ends}
        return names


def even(layers: int, stages: int, chunks: int = 1) -> Cut:
    """Cut blocks into parts that differ by one at most."""
    parts = stages * chunks
    edges = [layers * part // parts for part in range(parts + 1)]
    blocks: Sequence[range] = [range(edges[part], edges[part + 1]) for part in range(parts)]
    return Cut(tuple(tuple(blocks[chunk * stages + stage] for chunk in range(chunks)) for stage in range(stages)))
