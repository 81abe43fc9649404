"""Index maps: where a library stores the engine's parameters. Loading reads them one way, saving the other. No torch.

A serial parameter's rows lie in one tensor of the library or in several (query, key and value on their own), in an
order of their own (the halves of rotary pairs), and sometimes as columns.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from engine.errors import UsageError
from engine.models.architecture import Architecture

Index = npt.NDArray[np.int64]
Names = Mapping[str, str | Sequence[tuple[str, Index]]]
"""A library's layer by the serial one's name; or several, each with its rows in the serial one's order."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Adjacent rows of a serial parameter: rows `index` (or columns, transposed) of a library's tensor."""

    tensor: str
    index: Index
    transposed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Region of a library's tensor whose rows (or columns) are these rows of a rectangle."""

    tensor: str
    region: tuple[slice, ...]
    rows: Index
    transposed: bool


@dataclass(frozen=True, slots=True)
class Stored:
    """A network's parameters as a library stores them."""

    parts: Mapping[str, tuple[Part, ...]]
    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of the library's tensors, as parts index them."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """First name of a tied tensor, by its second."""
    views: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Shapes that the library gives to tensors of other dims."""

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the shape that the library gives to a tensor."""
        return self.views.get(tensor, self.shapes[tensor])

    def kept_as(self, parameter: str, tensor: str, shape: tuple[int, ...] | None = None) -> "Stored":
        """Name the one tensor that a parameter is kept in, and its shape where it has other dims."""
        (part,) = self.parts[parameter]
        shapes = dict(self.shapes)
        shapes[tensor] = shapes.pop(part.tensor)
        return replace(
            self,
            parts={**self.parts, parameter: (replace(part, tensor=tensor),)},
            shapes=shapes,
            views=self.views if shape is None else {**self.views, tensor: shape},
        )

    def also_called(self, second: str, first: str) -> "Stored":
        """Give a tensor a second name."""
        return replace(self, aliases={**self.aliases, second: first})

    def runs(self, parameter: str, region: tuple[slice, ...]) -> Iterator[Run]:
        """List what a rectangle of a serial parameter is made of, in as few regions as can be."""
        rows, *others = region
        parts = self.parts[parameter]
        for part, end in zip(parts, accumulate(len(part.index) for part in parts), strict=True):
            begin = end - len(part.index)
            low, high = max(rows.start, begin), min(rows.stop, end)
            if low >= high:
                continue
            index = part.index[low - begin : high - begin]
            order = np.argsort(index)
            for some in np.split(order, np.flatnonzero(np.diff(index[order]) != 1) + 1):
                span = slice(int(index[some[0]]), int(index[some[-1]]) + 1)
                whole = (*others, span) if part.transposed else (span, *others)
                yield Run(part.tensor, whole, some + (low - rows.start), part.transposed)

    def check(self, given: Mapping[str, tuple[int, ...]], owner: str) -> None:
        """Raise UsageError unless these are the tensors, by shape. owner: in error messages."""
        for name in self.shapes:
            shape = self.shape(name)
            if name not in given:
                raise UsageError(f"{owner} has no {name}, which its configuration asks for: complete it.")
            if given[name] != shape:
                raise UsageError(
                    f"{owner} has {name} of shape {list(given[name])}, but its configuration asks for {list(shape)}: "
                    "give the configuration that it was written with."
                )
        for name, shape in given.items():
            if name not in self.shapes and (name not in self.aliases or shape != self.shape(self.aliases[name])):
                raise UsageError(
                    f"{owner} has {name}, which no adapter knows: remove it, or train without the adapter."
                )


def stored(architecture: Architecture, names: Names, *, transposed_blocks: bool = False) -> Stored:
    """Map parameters by the names of layers: those of blocks that follow each other under one name by what comes after
    their number, and all others whole. transposed_blocks: matrices of blocks are stored [k, n].
    """
    parts: dict[str, tuple[Part, ...]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    network = architecture.network()
    for section, number in network.repeats():
        own = section.prefix(number) if section.name in names else ""
        prefix = f"{names[section.name]}.{number}." if own else ""
        for placement in section.placements(network.mode, number):
            layer, _, kind = placement.name.removeprefix(own).rpartition(".")
            rows, *others = placement.shape
            transposed = transposed_blocks and section.name != "" and others != []
            where = names[layer]
            places = [(where, np.arange(rows))] if isinstance(where, str) else where
            parts[placement.name] = tuple(Part(f"{prefix}{path}.{kind}", index, transposed) for path, index in places)
            for part in parts[placement.name]:
                before = shapes.get(part.tensor, (0,))[-1 if transposed else 0]
                whole = (before + len(part.index), *others)
                shapes[part.tensor] = whole[::-1] if transposed else whole
    aliases = {}
    for second, first in network.ties.items():
        layer, _, kind = second.rpartition(".")
        aliases[f"{names[layer]}.{kind}"] = parts[first][0].tensor
    return Stored(parts, shapes, aliases)


def halves(heads: int, size: int, turned: int | None = None, *, apart: int | None = None) -> Index:
    """Order the rows of heads whose rotary pairs are neighbours, where the library has all first halves before the
    second ones.

    turned: features of a head that have pairs (default all). apart: rows from head to head (default size).

    >>> halves(2, 4).tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    within = np.arange(size)
    turned = size if turned is None else turned
    within[:turned] = np.arange(turned).reshape(2, turned // 2).T.ravel()
    first = np.arange(heads) * (size if apart is None else apart)
    return (first[:, None] + within).ravel()
