"""Architecture: one network's shape as data, and all that the engine asks of a network. No torch.

A family of networks is a folder beside this file: config.py (the shape, which is the Architecture, and the network as a
table of operations), model.py (the same in plain PyTorch, its SERIAL), sizes.yaml. Nothing outside a folder names its
family.
"""

from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from math import gcd
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from engine.errors import UsageError, listed_divisors
from engine.grid import Axis, Grid
from engine.models.network import Carried, Network
from engine.models.tasks import Task
from engine.placement import Placement

if TYPE_CHECKING:
    from engine.models.serial import SerialModel

MOST, MOST_LAYERS = 2**31, 2**16
"""Largest sizes, and most blocks, of a network: some beyond take for ever to be listed."""


class Architecture(Protocol):
    """A network's shape; classes that inherit from it are frozen dataclasses.

    Of a network whose levels differ hidden, sequence and heads are those at its ends.
    """

    family: ClassVar[str]
    name: str
    layers: int
    """Blocks, which activation checkpointing runs again as a whole."""
    hidden: int
    """Features of the residual stream."""
    heads: int
    sequence: int
    """Tokens of a sample in the residual stream."""
    nominal: float | None
    """Parameters as its publication gives them."""
    source: str

    def network(self) -> Network:
        """List its operations, from which placements, flops and memory follow."""

    @property
    def task(self) -> Task:
        """Task that it is trained on."""

    def serial(self) -> "SerialModel":
        """Make the serial network on torch's default device."""
        model = import_module(f"{__package__}.{self.family}.model")  # loads torch
        serial: SerialModel = model.SERIAL(self)
        return serial

    def check(self, grid: Grid) -> None:
        """Raise UsageError, naming what would fit, unless the grid divides all that it has to."""
        _check_splits(self, grid)

    @property
    def stream(self) -> tuple[Carried, ...]:
        """Tensors between blocks where they are the residual stream alone."""
        return (Carried((self.sequence, self.hidden), 1),)

    def placements(self) -> dict[str, Placement]:
        """Return the placements of all parameters by name, in the model's order; a tied one under its first name."""
        return self.network().placements()

    @property
    def ties(self) -> Mapping[str, str]:
        """First names of parameters by their second: "head.weight" -> "tokens.weight"."""
        return self.network().ties

    @property
    def parameters(self) -> int:
        """Number of parameters, each counted once."""
        return self.network().parameters

    @property
    def outputs(self) -> int:
        """Logits of a token: as many as its vocabulary has tokens, or as there are classes."""
        return self.network().head.n

    @property
    def options(self) -> dict[str, Any]:
        """Every field, for the record."""
        return asdict(self)  # type: ignore[call-overload]

    def without_zeros(self) -> "Architecture":
        """Return the same from initial weights among which none is 0, so that every gradient counts from the first step
        on, as it has to where two trainings are compared over few.
        """
        return self

    @property
    def shape(self) -> dict[str, Any]:
        """Fields that have to be the same for a checkpoint to fit: not what it is called, and not its dropout."""
        other = ("name", "nominal", "source", "dropout")
        return {key: value for key, value in self.options.items() if key not in other}


class EvenHeads(Architecture, Protocol):
    """Transformer whose heads share the hidden size equally."""

    ffn: int | None
    """Width of the feed-forward, where it isn't 4 * hidden."""
    dropout: float
    activation: str

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    @property
    def wide(self) -> int:
        """Width of the feed-forward."""
        return self.ffn or 4 * self.hidden


def check_even_heads(shape: EvenHeads) -> None:
    """Raise UsageError for a size below 1, heads that don't divide the hidden size, or a dropout that is no
    probability.
    """
    check_positive(shape)
    check_multiple_of_heads(shape.hidden, shape.heads)
    check_dropout(shape.dropout)


def check_dropout(dropout: float) -> None:
    """Raise UsageError for what is no probability, or would drop everything."""
    if not 0 <= dropout < 1:
        raise UsageError(f"--dropout is a probability from 0 to below 1, but {dropout} was given.")


def check_positive(shape: Architecture) -> None:
    """Raise UsageError for a size below 1, or beyond what any machine holds. padding is a token, which count from 0."""
    for key, size in shape.options.items():
        if type(size) is not int:
            continue
        if size < (key != "padding"):
            raise UsageError(f"A model's {key} must be at least 1, but {size} was given.")
        most = MOST_LAYERS if key == "layers" else MOST
        if size > most and key != "nominal":
            raise UsageError(f"A model's {key} must be at most {most}, but {size} was given.")


def check_multiple_of_heads(hidden: int, heads: int) -> None:
    """Raise UsageError unless heads divides the hidden size."""
    if hidden % heads:
        raise UsageError(
            f"A model's hidden size must be a multiple of its heads, but {hidden} is not a multiple of {heads}; "
            f"{heads * (hidden // heads + 1)} would be."
        )


def check_positions(sequence: int, positions: int | None) -> None:
    """Raise UsageError for a sequence that is longer than a table of positions, if one is given."""
    if positions is not None and positions < sequence:
        raise UsageError(
            f"A sequence of {sequence} tokens is longer than the table of {positions} positions: use sequences of "
            f"{positions} or fewer."
        )


def _check_splits(model: Architecture, grid: Grid) -> None:
    network = model.network()
    inner, stream = network.mode.inner.features, network.mode.stream.features
    _check_axis(grid, inner, network.divided_inside, gcd(*network.divided_inside.values()))
    for what, numbers in network.shared_inside.items():
        for number in numbers:
            if not _leaves_none_out(number, grid[inner]):
                raise UsageError(
                    f"Grid {grid} shares {number} {what} among {inner}={grid[inner]} ranks, but the last ones would "
                    f"have none: {_list_sizes(inner, number)}."
                )
    _check_axis(grid, stream, network.divided_in_stream, None)
    both, ranks = network.divided_by_both, grid[inner] * grid[stream]
    if both % ranks:
        raise UsageError(
            f"Grid {grid} splits the channels over {inner}={grid[inner]} within {stream}={grid[stream]}, but {both} is "
            f"not a multiple of {ranks}: {inner} times {stream} may be one of {listed_divisors(both)}."
        )


def _check_axis(grid: Grid, axis: Axis, divided: Mapping[str, int], shared: int | None) -> None:
    """Raise UsageError for a number that the axis doesn't divide. shared: what a size that fits divides; of each number
    its own divisors if None.
    """
    for what, number in divided.items():
        if number % grid[axis]:
            unit = what.split()[-1]
            counted = f"{number} {unit} are" if unit.endswith("s") else f"{number} is"
            raise UsageError(
                f"Grid {grid} splits the {what} over {axis}={grid[axis]}, but {counted} not a multiple of "
                f"{grid[axis]}: {_list_sizes(axis, number if shared is None else shared)}."
            )


def _leaves_none_out(number: int, ranks: int) -> bool:
    """Return whether each of so many ranks has one or more of a number of things of which all but the last ones have
    as many.
    """
    return -(-number // ranks) * (ranks - 1) < number


def _list_sizes(axis: Axis, number: int) -> str:
    return f"{axis} may only be 1" if number == 1 else f"{axis} may be one of {listed_divisors(number)}"
