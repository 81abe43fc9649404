"""The variants of ablation results as frames: one row a variant of a job, what each axis of the grid took beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pandas as pd

from engine.result.schema import Result, Variant
from engine.result.step import Timeline
from reports.breakdowns import COLUMNS, values
from reports.jobs import long
from reports.text import clean, number, positive

VARIANT_COLUMNS = (*("run", "overlap", "time_s", *COLUMNS), *("prefetch_bytes", "cache_bytes", "cached_blocks"))


@dataclass(frozen=True)
class Variants:
    """The table has one row a variant, whose `run` is the index of its job in the frame of runs.

    rounds have by the index of the table the time of each round in seconds (the median of its steps, NaN for a round
    that has none), and timelines are those of the variants that have one. axes have rows (variant, axis, exposed_s,
    hidden_s).
    """

    table: pd.DataFrame
    axes: pd.DataFrame
    rounds: Mapping[int, tuple[float, ...]]
    timelines: Mapping[int, Timeline]

    def of(self, runs: pd.DataFrame) -> "Variants":
        table = self.table[self.table["run"].isin(runs.index)]
        axes = self.axes[self.axes["variant"].isin(table.index)]
        return Variants(table, axes, self.rounds, self.timelines)


def variants(results: Sequence[Result]) -> Variants:
    listed = [(run, variant) for run, result in enumerate(results) for variant in result.variants]
    rows = [_row(run, variant, results[run].version) for run, variant in listed]
    axes = long(
        [variant for _, variant in listed], lambda one: one.breakdown.axes if one.breakdown else (), key="variant",
        texts="axis", numbers="exposed_s hidden_s",
    )  # fmt: skip
    return Variants(
        pd.DataFrame(rows, columns=list(VARIANT_COLUMNS)),
        axes,
        {place: tuple(_round(times) for times in variant.rounds_s) for place, (_, variant) in enumerate(listed)},
        {place: variant.timeline for place, (_, variant) in enumerate(listed) if variant.timeline},
    )


def _row(run: int, variant: Variant, version: int) -> tuple[Any, ...]:
    return (
        run,
        clean(variant.overlap),
        positive(variant.time_per_iteration_s),
        *values(variant.breakdown, version),
        *map(number, (variant.prefetch_bytes, variant.cache_bytes, variant.cached_blocks)),
    )


def _round(times_s: Sequence[float]) -> float:
    return positive(median(times_s) if times_s else None)
