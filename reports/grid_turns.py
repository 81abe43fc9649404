"""Grids that took turns in one job: one row a grid of a job, and a table of each job."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from engine.result.grid_turns import GridTurns
from engine.result.schema import Result
from reports.columns import columns_of
from reports.jobs import grouped
from reports.page import Column, Table
from reports.text import clean, number, plural, positive

KIND = "grids"
COLUMNS = ["run", "grid", "micro_batch", "schedule", "time_s", "ratio", "low", "high", "predicted_s"]
NOTE = (
    "In the job's order of speed. The ratio is to the grid that was named first, or that the plan finds the fastest, "
    "paired by round; what has 1 in its interval is written in grey."
)


def grid_turns(results: Sequence[Result]) -> pd.DataFrame:
    return pd.DataFrame([_row(run, one) for run, result in enumerate(results) for one in result.grids], columns=COLUMNS)


def _row(run: int, one: GridTurns) -> tuple[Any, ...]:
    over = one.over_first
    ratio = (math.nan,) * 3 if over is None else tuple(map(number, (over.ratio, over.low, over.high)))
    return (
        run, clean(one.grid), number(one.micro_batch), clean(one.schedule or "", 60),
        positive(one.time_per_iteration_s), *ratio, positive(one.predicted_s),
    )  # fmt: skip


def tables(runs: pd.DataFrame, every: pd.DataFrame) -> list[Table]:
    """Make a table of each job that ended well, the newest first. every: as grid_turns() makes it."""
    held = runs[(runs["kind"] == KIND) & (runs["status"] == "ok")].sort_values("end", ascending=False)
    columns = columns_of(
        "grid micro_batch",
        Column("Schedule", "schedule", numeric=False, missing="one stage"),
        "time_s ratio",
        Column("Predicted", "predicted_s", columns_of("time_s")[0].write, missing="not asked for"),
        missing={"ratio": "the first"},
    )
    found = []
    for name, title, rows in grouped(held.assign(run=held.index), ["run"], _title):
        data = every[every["run"] == rows.iloc[0]["run"]].sort_values("time_s", kind="stable")
        found.append(Table(title, columns, data, f"turns-{name}", NOTE))
    return found


def _title(row: "pd.Series[Any]") -> str:
    where = f"{plural(int(row['ranks']), 'device')} of {row['system']}"
    return clean(f"In turns: {row['model']} on {where}", 120)
