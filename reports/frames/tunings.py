"""The tables of the matmul tuner as frames: one row a shape of a job, one row a way to compute one of its products."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from engine.result.judges import choices
from engine.result.schema import Result
from engine.result.schema.tuning import TunedShape
from reports.frames.jobs import long
from reports.text import clean, positive

SHAPE_COLUMNS = [
    *("run", "layer", "layers", "m", "n", "k", "dtype", "forwards", "again", "changed", "choice"),
    *("own_s", "chosen_s", "best_s", "holds"),
]


@dataclass(frozen=True)
class Tunings:
    """A shape's `run` is the index of its job in the frame of runs, and a way's `shape` the index in shapes.

    Times are of the second timing where there is one (again), of which the choice knew nothing; only then a choice can
    hold: "yes", "no" or "undecided".
    """

    shapes: pd.DataFrame
    ways: pd.DataFrame

    def of(self, runs: pd.DataFrame) -> "Tunings":
        shapes = self.shapes[self.shapes["run"].isin(runs.index)]
        return Tunings(shapes, self.ways[self.ways["shape"].isin(shapes.index)])


def tunings(results: Sequence[Result]) -> Tunings:
    listed = [
        (run, shape, bool(result.tuning.again))
        for run, result in enumerate(results)
        if result.tuning
        for shape in result.tuning.again or result.tuning.shapes
    ]
    ways = long(
        [shape for _, shape, _ in listed],
        lambda shape: shape.times,
        key="shape",
        plain="role column_major mode own chosen",
        positives="median_s low_s high_s flops_per_s",
    )
    return Tunings(pd.DataFrame([_row(*one) for one in listed], columns=SHAPE_COLUMNS), ways)


def _row(run: int, shape: TunedShape, again: bool) -> tuple[Any, ...]:
    own_s, chosen_s, best_s = map(positive, (shape.own_s, shape.chosen_s, shape.best_s))
    known = again and chosen_s == chosen_s and best_s == best_s
    holds = {"pass": "yes", "fail": "no", "undecided": "undecided"}[choices.by_fastest(shape).outcome] if known else ""
    return (
        run, clean(shape.layer, 120), shape.layers, shape.m, shape.n, shape.k, clean(shape.dtype), shape.forwards,
        again, changed(shape), choice(shape), own_s, chosen_s, best_s, holds,
    )  # fmt: skip


def changed(shape: TunedShape) -> bool:
    """Say whether its layers are computed in another way than PyTorch's."""
    return shape.column_major or any((shape.forward, shape.input_gradient, shape.weight_gradient))


def choice(shape: TunedShape) -> str:
    """Say how its layers are computed, in words."""
    modes = {"O": shape.forward, "dI": shape.input_gradient, "dW": shape.weight_gradient}
    words = ["weight by columns"] if shape.column_major else []
    words += [f"{product} as {mode}" for product, mode in modes.items() if mode]
    return ", ".join(words) or "as PyTorch does"
