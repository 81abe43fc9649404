"""A network is a table of operations, from which all that the engine asks of it follows. No torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import TypeVar

from engine.models.operations import Kept, Linear, Operation
from engine.placement import Placement

Kind = TypeVar("Kind", bound=Operation)


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage is operations that run one after the other, as often as they repeat, each time with parameters of their
    own.

    name: of the serial model's list of the repeats. A stage without one runs once, and its layers are the model's own.
    recomputed: whether activation checkpointing keeps the input of each repeat alone, and runs it again. tokens: how
    many of a sample it works on, where it isn't all of the sequence.
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
    """A network is stages in the order in which they run."""

    stages: tuple[Stage, ...]

    def repeats(self) -> Iterator[tuple[Stage, int]]:
        """List every repeat of every stage, by its number. A pipeline may cut between any two."""
        for stage in self.stages:
            for number in range(stage.repeat):
                yield stage, number

    def placements(self) -> dict[str, Placement]:
        """Give the placements of all parameters by name, in the model's order; a tied one under its first name."""
        return {placed.name: placed for stage, number in self.repeats() for placed in stage.placements(number)}

    @property
    def ties(self) -> Mapping[str, str]:
        """Give second names of parameters, and the first: "head.weight" -> "tokens.weight"."""
        linears = [linear for stage in self.stages for linear in stage.of_kind(Linear)]
        return {f"{linear.name}.weight": f"{linear.tied}.weight" for linear in linears if linear.tied}

    @property
    def blocks(self) -> Stage:
        """Find the one stage that is recomputed."""
        (blocks,) = (stage for stage in self.stages if stage.recomputed)
        return blocks

    @property
    def head(self) -> Linear:
        """Find the last product, which makes the logits."""
        return self.stages[-1].of_kind(Linear)[-1]

    @property
    def head_weight(self) -> Placement:
        """Give the placement of the head's weight, which may be a table's."""
        name = f"{self.head.name}.weight"
        return next(placed for placed in self.rest if placed.name == self.ties.get(name, name))

    @property
    def divided_by_inner(self) -> Mapping[str, int]:
        """Count what the axis INNER has to divide, by what it is called."""
        return {what: n for stage in self.stages for op in stage.operations for what, n in op.divided_by_inner.items()}

    @property
    def rest(self) -> list[Placement]:
        """Give the placements of all parameters outside of blocks."""
        return [placed for stage in self.stages if not stage.recomputed for placed in stage.placements()]

    @property
    def parameters(self) -> int:
        """Count every parameter once."""
        return sum(stage.repeat * prod(placed.shape) for stage in self.stages for placed in stage.placements())
