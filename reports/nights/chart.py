"""Chart of a figure through the nights: a dot a night, what was expected, and where its level changed."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from reports import text
from reports.nights.history import Night
from reports.plots.canvas import Scale
from reports.plots.lines import Line, scatter

MOST_NIGHTS = 180
"""Most nights in a chart, the last ones."""
FAR, LATELY = 3.0, 12
"""Values farther than FAR widths beyond the usual range stand at the edge, but for the last LATELY nights."""
LARGEST = 9e4
"""Largest value on a scale, in the unit that suits most nights: larger ones have names too long for it."""


def chart(rows: pd.DataFrame, nights: Sequence[Night]) -> Figure:
    """Draw a figure's rows (page.py) of the last MOST_NIGHTS of these nights."""
    first = max(0, len(nights) - MOST_NIGHTS)
    shown, rows = nights[first:], rows[rows["at"] >= first]
    at, (factor, unit) = rows["at"] - first, _scale(rows["unit"].iloc[0], rows["value"].median())
    value, usual = ((rows[key].astype(float) / factor).clip(0, LARGEST) for key in ("value", "usual"))
    without = usual * (1 + rows["change"].astype(float))
    lower, upper = (without / (1 + rows[end].astype(float)) for end in ("high", "low"))
    low, high = value.quantile([0.05, 0.95])
    reach = FAR * max(high - low, 0.005 * high)
    near = value[value.between(low - reach, high + reach)]
    seen = pd.concat([near, value[-LATELY:], usual, pd.Series([lower.median(), upper.median()])])
    drawn = pd.DataFrame({"value": value, "usual": usual, "lower": lower, "upper": upper})
    drawn = drawn.clip(seen.min(), seen.max()).assign(at=at)
    alarmed, updated = drawn[rows["alarm_since"] != ""], drawn[rows["updated"] != ""]
    groups = (
        Line.of(drawn, "at", "usual", "muted", "expected", kind="band").between(drawn, "lower", "upper"),
        Line.of(drawn, "at", "value", "blue", "night", kind="dots"),
        Line.of(alarmed, "at", "value", "red", "alarm", kind="dots"),
        Line.of(updated, "at", "value", "gold", "updated", kind="rings"),
    )
    form = "%m-%d" if shown[0].began.date() != shown[-1].began.date() else "%H:%M"
    write = lambda tick: f"{shown[min(max(round(tick), 0), len(shown) - 1)].began:{form}}"  # noqa: E731
    span = f"{shown[0].began:%Y-%m-%d} to {shown[-1].began:%Y-%m-%d}"
    changed = at[rows["level"].notna()].max() - 0.5
    return scatter(groups, Scale(span, write=write), Scale(unit), upright=changed)


def _scale(unit: str, usual: float) -> tuple[float, str]:
    """Return the divisor of values, and their unit after it."""
    if unit == "B":
        return (2.0**30, "GiB") if usual >= 2**30 else (2.0**20, "MiB")
    if unit == "x" or (unit == "s" and usual >= 1):
        return 1.0, {"x": "times", "s": "seconds"}[unit]
    factor, letter = text.prefix(usual)
    return factor, f"{letter}{unit}"
