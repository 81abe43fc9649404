"""A network is a table of operations, from which all that the engine asks of it follows. No torch."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from engine.models.operations import Kept, Linear, Operation
from engine.placement import Placement

Kind = TypeVar("Kind", bound=Operation)


@dataclass(frozen=True, slots=True)
class Section:
    """A section is operations that run one after the other, as often as they repeat, each time with parameters of their
    own.

    name: of the serial model's list of the repeats. A section without one runs once, and its layers are the model's
    own. recomputed: whether activation checkpointing keeps the input of each repeat alone, and runs it again. tokens:
    how many of a sample it works on, where it isn't all of the sequence.
    """

    operations: tuple[Operation, ...]
    name: str = ""
    repeat: int = 1
    recomputed: bool = False
    tokens: int | None = None

    def prefix(self, number: int) -> str:
        """Give what the names of a repeat's layers begin with."""
        return f"{self.name}.{number}." if self.name else ""

    def placements(self, number: int = 0) -> list[Placement]:
        """Give the placements of one repeat's parameters, in the model's order. Repeats differ in names alone."""
        return [placed for operation in self.operations for placed in operation.placements(self.prefix(number))]

    @property
    def kept(self) -> Kept:
        """List what one repeat keeps for its backward."""
        return Kept(*map(sum, zip(*(operation.kept for operation in self.operations), strict=True)))

    def of_kind(self, kind: type[Kind]) -> list[Kind]:
        """List the operations of one kind, in their order."""
        return [operation for operation in self.operations if isinstance(operation, kind)]


@dataclass(frozen=True, slots=True)
class Network:
    """A network is sections in the order in which they run: those before the blocks, the blocks, those after them."""

    sections: tuple[Section, ...]

    def repeats(self) -> Iterator[tuple[Section, int]]:
        """List every repeat of every section, by its number. A pipeline may cut between any two."""
        for section in self.sections:
            for number in range(section.repeat):
                yield section, number

    def placements(self) -> dict[str, Placement]:
        """Give the placements of all parameters by name, in the model's order; a tied one under its first name."""
        return {placed.name: placed for section, number in self.repeats() for placed in section.placements(number)}

    @property
    def ties(self) -> Mapping[str, str]:
        """Give second names of parameters, and the first: "head.weight" -> "tokens.weight"."""
        linears = [linear for section in self.sections for linear in section.of_kind(Linear)]
        return {f"{linear.name}.weight": f"{linear.tied}.weight" for linear in linears if linear.tied}

    @property
    def blocks(self) -> Section:
        """Find the one section that is recomputed."""
        (blocks,) = (section for section in self.sections if section.recomputed)
        return blocks

    @property
    def head(self) -> Linear:
        """Find the last product, which makes the logits."""
        return self.sections[-1].of_kind(Linear)[-1]

    @property
    def head_weight(self) -> Placement:
        """Give the placement of the head's weight, which may be a table's."""
        name = f"{self.head.name}.weight"
        return next(placed for placed in self.after if placed.name == self.ties.get(name, name))

    @property
    def divided_by_inner(self) -> Mapping[str, int]:
        """Count what the axis INNER has to divide, by what it is called."""
        return {
            what: n for section in self.sections for op in section.operations for what, n in op.divided_by_inner.items()
        }

    @property
    def around(self) -> tuple[tuple[Section, ...], tuple[Section, ...]]:
        """Give the sections before the blocks and those after them."""
        at = self.sections.index(self.blocks)
        return self.sections[:at], self.sections[at + 1 :]

    @property
    def before(self) -> list[Placement]:
        """Give the placements of the parameters that are used before the blocks."""
        return [placed for section in self.around[0] for placed in section.placements()]

    @property
    def after(self) -> list[Placement]:
        """Give those of the parameters that are used after the blocks, and of a table that one of them is tied to."""
        own = [placed for section in self.around[1] for placed in section.placements()]
        return own + [placed for placed in self.before if placed.name in self.ties.values()]

    @property
    def rest(self) -> list[Placement]:
        """Give the placements of all parameters outside of blocks."""
        return self.part((), first=True, last=True)

    def part(self, blocks: Iterable[int], *, first: bool, last: bool) -> list[Placement]:
        """Give the placements of a stage of a pipeline that has these blocks: the first stage has what is used before
        all blocks, too, and the last what is used after them, a copy of a tied table included.
        """
        before, after = self.before if first else [], self.after if last else []
        inside = [placed for number in blocks for placed in self.blocks.placements(number)]
        return list({placed.name: placed for placed in (*before, *inside, *after)}.values())

    @property
    def parameters(self) -> int:
        """Count every parameter once."""
        return sum(section.repeat * prod(placed.shape) for section in self.sections for placed in section.placements())
