"""Network: a table of operations, from which all that the engine asks of it follows. No torch."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod
from typing import NamedTuple, TypeVar

from engine.grid import Grid
from engine.models.operations import Kept, Linear, Operation
from engine.placement import Placement
from engine.tensor_mode import ALGORITHM_1, TensorMode

AnyOperation = TypeVar("AnyOperation", bound=Operation)


@dataclass(frozen=True, slots=True)
class Carried:
    """Tensor of each sample that one block gives to the next."""

    shape: tuple[int, ...]
    dim: int
    """Dim of its features."""
    label: str = "hidden size"
    """Name of the features in error messages."""

    def __str__(self) -> str:
        return f"{'x'.join(map(str, self.shape))} split along dim {self.dim}"

    @property
    def features(self) -> int:
        return self.shape[self.dim]

    def of_rank(self, grid: Grid, mode: TensorMode) -> tuple[int, ...]:
        """Return the shape of a rank's part."""
        ranks = grid[mode.stream.features]
        return tuple(size // (ranks if dim == self.dim else 1) for dim, size in enumerate(self.shape))


@dataclass(frozen=True, slots=True)
class Section:
    """Operations that run one after the other, as often as they repeat, each time with parameters of their own."""

    operations: tuple[Operation, ...]
    name: str = ""
    """The serial model's list of the repeats; without one it runs once, and its layers are the model's own."""
    repeat: int = 1
    recomputed: bool = False
    """Whether activation checkpointing keeps the input of each repeat alone, and runs it again."""
    tokens: int | None = None
    """Tokens of a sample that it works on, where it isn't all of the sequence."""
    first: int = 0
    """Number of the first repeat in its list."""
    output: Carried | None = None
    """Stream that it makes, if that isn't like its input."""
    takes: Carried | None = None
    """Tensor it takes besides, that an earlier block has left for it."""
    leaves: bool = False
    """Whether it leaves the stream as it takes it for a later block, too."""
    whole: bool = False
    """Whether its layers have all rows in every tensor mode, as they are few or no equal part of others."""

    def tokens_of(self, operation: Operation, sequence: int) -> int:
        """Count the tokens of a sample that one of its operations works on."""
        return operation.tokens or self.tokens or sequence

    def prefix(self, number: int) -> str:
        """Return the beginning of the names of a repeat's layers."""
        return f"{self.name}.{self.first + number}." if self.name else ""

    def placements(self, mode: TensorMode, number: int = 0) -> list[Placement]:
        """List the placements of one repeat's parameters, in the model's order. Repeats differ in names alone."""
        lies = mode.whole if self.whole else mode
        return [placed for operation in self.operations for placed in operation.placements(self.prefix(number), lies)]

    def kept(self, sequence: int, kind: type[Operation] = Operation) -> Kept:
        """Sum what operations of a kind of one repeat keep of a sample for their backward."""
        each = (operation.kept.times(self.tokens_of(operation, sequence)) for operation in self.of_kind(kind))
        return Kept(*map(sum, zip(*each, strict=True)))

    @property
    def parts_in(self) -> set[tuple[int, ...]]:
        """Parts of the features that its first operation takes, and its first product, and those like it."""
        first = self.of_kind(Linear)[0]
        alike = [linear for linear in self.of_kind(type(first)) if (linear.k, linear.sides) == (first.k, first.sides)]
        return {operation.parts_in for operation in (self.operations[0], *alike)}

    def of_kind(self, kind: type[AnyOperation]) -> list[AnyOperation]:
        """List the operations of one kind, in their order."""
        return [operation for operation in self.operations if isinstance(operation, kind)]


class Block(NamedTuple):
    """One repeat of a section that is recomputed."""

    section: Section
    number: int

    def placements(self, mode: TensorMode) -> list[Placement]:
        return self.section.placements(mode, self.number)


@dataclass(frozen=True)
class Network:
    """Sections in the order in which they run: those before the blocks, the blocks, those after them."""

    sections: tuple[Section, ...]
    entering: tuple[Carried, ...]
    """Inputs of the first block: the stream, and what goes beside it to every block."""
    mode: TensorMode = ALGORITHM_1
    """Way in which it lies on a grid."""

    def repeats(self) -> Iterator[tuple[Section, int]]:
        """List every repeat of every section, by its number. A pipeline may cut between any two."""
        for section in self.sections:
            for number in range(section.repeat):
                yield section, number

    def placements(self) -> dict[str, Placement]:
        """Return the placements of all parameters by name, in the model's order; a tied one under its first name."""
        return {
            placed.name: placed
            for section, number in self.repeats()
            for placed in section.placements(self.mode, number)
        }

    @property
    def whole_layers(self) -> set[str]:
        """Names of the layers with parameters that have all rows."""
        placed = (
            one for section, number in self.repeats() if section.whole for one in section.placements(self.mode, number)
        )
        return {one.name.rpartition(".")[0] for one in placed}

    @property
    def ties(self) -> Mapping[str, str]:
        """First names of parameters by their second: "head.weight" -> "tokens.weight"."""
        linears = [linear for section in self.sections for linear in section.of_kind(Linear)]
        return {f"{linear.name}.weight": f"{linear.tied}.weight" for linear in linears if linear.tied}

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(Block(section, number) for section, number in self.repeats() if section.recomputed)

    @cached_property
    def kinds(self) -> tuple[Placement, ...]:
        """Placements, of those that differ in names and initial values alone the first."""
        kinds: dict[tuple[object, ...], Placement] = {}
        for placed in (placed for section in self.sections for placed in section.placements(self.mode)):
            parts, sliced = tuple(placed.parts.items()), tuple(placed.sliced.items())
            units = tuple(placed.units.items())
            kinds.setdefault((placed.shape, placed.split, placed.sharded, parts, sliced, units), placed)
        return tuple(kinds.values())

    @property
    def passes_tokens(self) -> bool:
        """Whether blocks pass on rows of features, one for each token, and nothing else."""
        return [len(carried.shape) for carried in self.entering] == [2] and self.entering[0].dim == 1

    @property
    def tokens_of_blocks(self) -> set[int]:
        """Tokens of a sample that blocks pass on."""
        return {boundary[0].shape[0] for boundary in self.boundaries}

    def run_twice(self, recomputed: int) -> Iterator[tuple[Section, int]]:
        """Yield each section with the number of its repeats that run forward twice, where so many blocks, the first
        ones, are recomputed.
        """
        for section in self.sections:
            again = min(recomputed, section.repeat) if section.recomputed else 0
            recomputed -= again
            yield section, again

    @property
    def alike(self) -> bool:
        """Whether all blocks are the same but for their numbers."""
        return all(block.section is self.blocks[0].section for block in self.blocks)

    @cached_property
    def boundaries(self) -> tuple[tuple[Carried, ...], ...]:
        """List the inputs of each block, and the output of the last one.

        Raises ValueError where a block takes what none has left, or something else than that, where its operations
        split it otherwise, and where none takes what is left.
        """
        (stream, *beside), left = self.entering, list[Carried]()
        boundaries = [self.entering]
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
            boundaries.append((stream, *beside, *left))
        if left:
            raise ValueError(f"No block takes {left[-1]}, which is left behind the last one: let one take it.")
        return tuple(boundaries)

    @property
    def head(self) -> Linear:
        """Last product, which makes the logits."""
        return self.sections[-1].of_kind(Linear)[-1]

    @property
    def head_weight(self) -> Placement:
        """Placement of the head's weight, which may be a table's."""
        name = f"{self.head.name}.weight"
        return next(placed for placed in self.after if placed.name == self.ties.get(name, name))

    @cached_property
    def divided_inside(self) -> Mapping[str, int]:
        """Numbers that the axis of inner features has to divide, by name: of several the largest common divisor."""
        return _common_divisors(item for operation in self._operations for item in operation.divided_inside.items())

    @cached_property
    def shared_inside(self) -> Mapping[str, tuple[int, ...]]:
        """Numbers of which each rank of that axis has to have one or more, by name."""
        found: dict[str, set[int]] = defaultdict(set)
        for operation in self._operations:
            for name, number in operation.shared_inside.items():
                found[name].add(number)
        return {name: tuple(sorted(numbers)) for name, numbers in found.items()}

    @property
    def _operations(self) -> Iterator[Operation]:
        return (operation for section in self.sections for operation in section.operations)

    @cached_property
    def divided_in_stream(self) -> Mapping[str, int]:
        """Numbers that the axis of the stream's features has to divide, likewise."""
        carried = (*self.entering, *(section.output for section in self.sections if section.output))
        return _common_divisors((tensor.label, tensor.features) for tensor in carried)

    @cached_property
    def divided_by_both(self) -> int:
        """Channels that the axis of inner features splits within slices of the stream's: of several the largest common
        divisor.
        """
        return gcd(*(placed.shape[dim] for placed in self.kinds for dim in placed.sliced))

    @property
    def around(self) -> tuple[tuple[Section, ...], tuple[Section, ...]]:
        """Sections before the blocks, and those after them."""
        places = [place for place, section in enumerate(self.sections) if section.recomputed]
        return self.sections[: places[0]], self.sections[places[-1] + 1 :]

    @property
    def before(self) -> list[Placement]:
        """Placements of the parameters that are used before the blocks."""
        return [placed for section in self.around[0] for placed in section.placements(self.mode)]

    @property
    def after(self) -> list[Placement]:
        """Placements of those that are used after the blocks, and of a table that one of them is tied to."""
        own = [placed for section in self.around[1] for placed in section.placements(self.mode)]
        return own + [placed for placed in self.before if placed.name in self.ties.values()]

    @property
    def rest(self) -> list[Placement]:
        """Placements of all parameters outside of blocks."""
        return self.part((), first=True, last=True)

    def part(self, blocks: Iterable[int], *, first: bool, last: bool) -> list[Placement]:
        """List the placements of a stage of a pipeline that has these blocks: the first stage has what is used before
        all blocks, too, and the last what is used after them, a copy of a tied table included.
        """
        before, after = self.before if first else [], self.after if last else []
        inside = [placed for number in blocks for placed in self.blocks[number].placements(self.mode)]
        return list({placed.name: placed for placed in (*before, *inside, *after)}.values())

    @property
    def parameters(self) -> int:
        """Number of parameters, each counted once."""
        each = (
            section.repeat * sum(prod(one.shape) for one in section.placements(self.mode)) for section in self.sections
        )
        return sum(each)


def _common_divisors(numbers: Iterable[tuple[str, int]]) -> Mapping[str, int]:
    found: dict[str, int] = defaultdict(int)
    for name, number in numbers:
        found[name] = gcd(found[name], number)
    return dict(found)
