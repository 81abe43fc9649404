"""A network is a table of operations, from which all that the engine asks of it follows. No torch."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod
from typing import NamedTuple, TypeVar

from engine.grid import STREAM, Grid
from engine.models.operations import Kept, Linear, Operation
from engine.placement import Placement

Kind = TypeVar("Kind", bound=Operation)


@dataclass(frozen=True, slots=True)
class Carried:
    """It is a tensor that one block gives to the next, of each sample. dim: that of its features, which STREAM splits.
    what: what errors call them.
    """

    shape: tuple[int, ...]
    dim: int
    what: str = "hidden size"

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape))} split along dim {self.dim}"

    @property
    def features(self) -> int:
        """Count what STREAM has to divide."""
        return self.shape[self.dim]

    def of_rank(self, grid: Grid) -> tuple[int, ...]:
        """Give the shape of a rank's part."""
        return tuple(size // (grid[STREAM] if dim == self.dim else 1) for dim, size in enumerate(self.shape))


@dataclass(frozen=True, slots=True)
class Section:
    """A section is operations that run one after the other, as often as they repeat, each time with parameters of their
    own.

    name: of the serial model's list of the repeats, the first of which has the number `first`. A section without one
    runs once, and its layers are the model's own. recomputed: whether activation checkpointing keeps the input of each
    repeat alone, and runs it again. tokens: how many of a sample it works on, where it isn't all of the sequence.
    output: what it makes of the stream, if that isn't like its input. takes: what it takes besides, that an earlier
    block has left for it. leaves: whether it leaves the stream as it takes it for a later block, too.
    """

    operations: tuple[Operation, ...]
    name: str = ""
    repeat: int = 1
    recomputed: bool = False
    tokens: int | None = None
    first: int = 0
    output: Carried | None = None
    takes: Carried | None = None
    leaves: bool = False

    def tokens_of(self, operation: Operation, sequence: int) -> int:
        """Count the tokens of a sample of so many that one of its operations works on."""
        return operation.tokens or self.tokens or sequence

    def prefix(self, number: int) -> str:
        """Give what the names of a repeat's layers begin with."""
        return f"{self.name}.{self.first + number}." if self.name else ""

    def placements(self, number: int = 0) -> list[Placement]:
        """Give the placements of one repeat's parameters, in the model's order. Repeats differ in names alone."""
        return [placed for operation in self.operations for placed in operation.placements(self.prefix(number))]

    def kept(self, sequence: int) -> Kept:
        """List what one repeat keeps of a sample of so many tokens for its backward."""
        each = (operation.kept.of(self.tokens_of(operation, sequence)) for operation in self.operations)
        return Kept(*map(sum, zip(*each, strict=True)))

    @property
    def parts_in(self) -> set[tuple[int, ...]]:
        """Give the parts in which its first operation takes the features, and its first product, and those like it."""
        first = self.of_kind(Linear)[0]
        alike = [one for one in self.of_kind(type(first)) if (one.k, one.split) == (first.k, first.split)]
        return {one.parts_in for one in (self.operations[0], *alike)}

    def of_kind(self, kind: type[Kind]) -> list[Kind]:
        """List the operations of one kind, in their order."""
        return [operation for operation in self.operations if isinstance(operation, kind)]


class Block(NamedTuple):
    """It is one repeat of a section that is recomputed."""

    section: Section
    number: int

    @property
    def placements(self) -> list[Placement]:
        """Give the placements of its parameters, in the model's order."""
        return self.section.placements(self.number)


@dataclass(frozen=True)
class Network:
    """A network is sections in the order in which they run: those before the blocks, the blocks, those after them.

    entering: what the first block takes: the stream, and what goes beside it to every block.
    """

    sections: tuple[Section, ...]
    entering: tuple[Carried, ...]

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

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """List what is recomputed, in its order."""
        return tuple(Block(section, number) for section, number in self.repeats() if section.recomputed)

    @cached_property
    def kinds(self) -> tuple[Placement, ...]:
        """List the placements: of those that differ in names and initial values alone the first."""
        found: dict[tuple[object, ...], Placement] = {}
        for placed in (placed for section in self.sections for placed in section.placements()):
            parts, sliced = tuple(placed.parts.items()), tuple(placed.sliced.items())
            found.setdefault((placed.shape, placed.split, placed.sharded, parts, sliced), placed)
        return tuple(found.values())

    @property
    def alike(self) -> bool:
        """Say whether all blocks are the same but for their numbers."""
        return all(block.section is self.blocks[0].section for block in self.blocks)

    @cached_property
    def boundaries(self) -> tuple[tuple[Carried, ...], ...]:
        """List what each block takes, and what comes out of the last one. Raises ValueError where a block takes what
        none has left, or something else than that, where its operations split it otherwise, and where none takes what
        is left.
        """
        (stream, *beside), left = self.entering, list[Carried]()
        found = [self.entering]
        for section, number in self.blocks:
            left += [stream] if section.leaves else []
            if section.takes is not None and (last := left.pop() if left else None) != section.takes:
                raise ValueError(
                    f"Block {section.first + number} takes {section.takes}, but {last or 'nothing'} was left for it: "
                    "both ends of a skip have one shape and one split."
                )
            joined = () if section.takes is None else (stream.features, section.takes.features)
            if section.parts_in != {joined}:
                raise ValueError(
                    f"What block {section.first + number} takes has the parts {joined}, but operations of it have "
                    f"{' and '.join(map(str, sorted(section.parts_in)))}: let all that read it have the same."
                )
            stream = section.output or stream
            found.append((stream, *beside, *left))
        if left:
            raise ValueError(f"No block takes {left[-1]}, which is left behind the last one: let one take it.")
        return tuple(found)

    @property
    def head(self) -> Linear:
        """Find the last product, which makes the logits."""
        return self.sections[-1].of_kind(Linear)[-1]

    @property
    def head_weight(self) -> Placement:
        """Give the placement of the head's weight, which may be a table's."""
        name = f"{self.head.name}.weight"
        return next(placed for placed in self.after if placed.name == self.ties.get(name, name))

    @cached_property
    def divided_by_inner(self) -> Mapping[str, int]:
        """Count what the axis INNER has to divide, by what it is called: of several the largest common divisor."""
        found: dict[str, int] = {}
        for section in self.sections:
            for operation in section.operations:
                for what, number in operation.divided_by_inner.items():
                    found[what] = gcd(found.get(what, 0), number)
        return found

    @cached_property
    def divided_by_stream(self) -> Mapping[str, int]:
        """Count what the axis STREAM has to divide in the same way."""
        found: dict[str, int] = {}
        for carried in (*self.entering, *(section.output for section in self.sections if section.output)):
            found[carried.what] = gcd(found.get(carried.what, 0), carried.features)
        return found

    @cached_property
    def divided_by_both(self) -> int:
        """Count the channels that INNER splits within the slices of STREAM: of several the largest common divisor."""
        return gcd(*(placed.shape[dim] for placed in self.kinds for dim in placed.sliced))

    @property
    def around(self) -> tuple[tuple[Section, ...], tuple[Section, ...]]:
        """Give the sections before the blocks and those after them."""
        places = [place for place, section in enumerate(self.sections) if section.recomputed]
        return self.sections[: places[0]], self.sections[places[-1] + 1 :]

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
        inside = [placed for number in blocks for placed in self.blocks[number].placements]
        return list({placed.name: placed for placed in (*before, *inside, *after)}.values())

    @property
    def parameters(self) -> int:
        """Count every parameter once."""
        return sum(section.repeat * prod(placed.shape) for section in self.sections for placed in section.placements())
