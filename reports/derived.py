"""Figures of engine.result.metrics over columns: the report computes none by itself."""

import math
from collections.abc import Callable
from typing import Any

import pandas as pd

from engine.result import metrics

NAMES = frozenset(definition.name for definition in metrics.DEFINITIONS)


def by_row(figure: Callable[..., float | None], *columns: "pd.Series[Any] | float") -> "pd.Series[float]":
    """Return one of the figures, row by row; NaN where an input is, where there is no such figure, or no finite one.

    columns: its parameters in order, one of them at least a column; a number is the same in every row.
    """
    index = next(column.index for column in columns if isinstance(column, pd.Series))
    values = [column.tolist() if isinstance(column, pd.Series) else [column] * len(index) for column in columns]
    return pd.Series([_one(figure, row) for row in zip(*values, strict=True)], index=index, dtype=float)


def _one(figure: Callable[..., float | None], inputs: tuple[Any, ...]) -> float:
    if any(value is None or math.isnan(value) for value in inputs):
        return math.nan
    try:
        value = figure(*inputs)
    except (ZeroDivisionError, OverflowError):
        return math.nan
    return value if value is not None and math.isfinite(value) else math.nan
