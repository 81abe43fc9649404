"""Layout of a peer's ranks whose splits of network and batch aren't the axes of a grid. No torch."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from itertools import cycle
from math import prod
from typing import Literal, get_args

from engine.batch import Batch
from engine.errors import UsageError, listed_divisors
from engine.footprint.fit import check_grid
from engine.grid import TENSOR, Grid
from engine.models.architecture import Architecture
from engine.planning import grids

Split = Literal["tensor", "pipeline", "data"]
SPLITS: tuple[Split, ...] = get_args(Split)
PER_STAGE = 4
"""Micro-batches of a pipeline stage by default: its bubble is then at most a fifth of the step."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Numbers of ranks of each kind of parallelism."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    micro_batches: int = 1
    """Micro-batches of a data rank in a step, in turn."""

    @classmethod
    def parse(cls, text: str) -> "Layout":
        """Read "tensor=2,pipeline=2,micro_batches=8"; what isn't named is 1. Raises UsageError."""
        pairs = [re.fullmatch(r"(\w+)=([1-9]\d{0,6})", word) for word in text.split(",")]
        names = [pair[1] for pair in pairs if pair]
        known = [field.name for field in fields(cls)]
        if len(names) < len(pairs) or len(set(names)) < len(names) or not set(names) <= set(known):
            raise UsageError(
                f"A layout names some of {', '.join(known)} with a number each, such as tensor=2,data=4, but {text!r} "
                "was given."
            )
        return cls(**{pair[1]: int(pair[2]) for pair in pairs if pair})

    @property
    def size(self) -> int:
        return prod(getattr(self, name) for name in SPLITS)

    def __str__(self) -> str:
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return ",".join(f"{name}={number}" for name, number in named.items() if number > 1) or "tensor=1"

    def check(self, model: Architecture, sequences: int) -> None:
        """Raise UsageError if it doesn't divide a network or a batch of that many sequences."""
        heads = getattr(model, "kv_heads", model.heads)
        rules = (
            ("tensor", self.tensor, f"its {heads} heads", heads),
            ("tensor", self.tensor, f"its vocabulary of {model.outputs}", model.outputs),
            ("pipeline", self.pipeline, f"its {model.layers} layers", model.layers),
            ("data times micro_batches", self.data * self.micro_batches, f"{sequences} sequences", sequences),
        )
        for what, number, of, whole in rules:
            if whole % number:
                raise UsageError(
                    f"The layout {self} doesn't fit {model.name}: {what} is {number}, which doesn't divide {of}; "
                    f"{listed_divisors(whole)} do."
                )

    def for_batch(self, batch: Batch) -> "Layout":
        """Return the same with micro-batches where none were named: of the batch's size; of a pipeline without one, as
        many as divide a data rank's share, up to PER_STAGE a stage. Raises UsageError where a share has no such parts.
        """
        if self.micro_batches > 1 or batch.sequences % self.data:
            return self
        share = batch.sequences // self.data
        if batch.micro is not None:
            if share % batch.micro:
                raise UsageError(
                    f"A data rank of the layout {self} has {share} of the {batch.sequences} sequences, which "
                    f"micro-batches of {batch.micro} don't divide: use --peer-micro-batch one of "
                    f"{listed_divisors(share)}."
                )
            return replace(self, micro_batches=share // batch.micro)
        if self.pipeline == 1:
            return self
        fitting = [count for count in grids.divisors(share) if count <= PER_STAGE * self.pipeline]
        return replace(self, micro_batches=fitting[-1])

    def rows(self, index: int, sequences: int) -> range:
        """Return the sequences of the data rank of that index."""
        share = sequences // self.data
        return range(index * share, (index + 1) * share)


PeerLayout = Layout | Grid
"""Split of a peer's ranks in ways of its own, or as one of our grids has it."""


def parse(text: str) -> PeerLayout:
    """Read a layout or a grid, as a command line has it. Raises UsageError."""
    return Grid.parse(text) if re.fullmatch(r"\d+(x\d+)*", text) else Layout.parse(text)


def usual(ranks: int, splits: Sequence[Split]) -> Layout:
    """Lay out ranks: their prime factors, the smallest first, are given to the splits in turn."""
    layout, turns = Layout(), cycle(splits)
    while layout.size < ranks:
        _, smallest, *_ = grids.divisors(ranks // layout.size)
        split = next(turns)
        layout = replace(layout, **{split: getattr(layout, split) * smallest})
    return layout


def every(ranks: int, splits: Sequence[Split], model: Architecture, sequences: int) -> list[Layout]:
    """List all layouts of that many ranks that fit."""
    found = [Layout()]
    for name in splits:
        found = [
            replace(layout, **{name: number}) for layout in found for number in grids.divisors(ranks // layout.size)
        ]
    return [layout for layout in found if layout.size == ranks and accepted(layout.check, model, sequences)]


def check_split(model: Architecture, grid: Grid, batch: Batch) -> None:
    """Raise UsageError if a peer can't train a network on a grid: its tensor parallelism has equal shares."""
    check_grid(model, grid, batch)
    Layout(tensor=grid[TENSOR]).check(model, batch.sequences)


def accepted(check: Callable[..., object], *arguments: object) -> bool:
    """Say whether a check raises no UsageError."""
    with suppress(UsageError):
        check(*arguments)
        return True
    return False
