"""The figure of contests: a row each, the engine's step time by the other side's."""

from collections.abc import Callable

import pandas as pd

from reports import text
from reports.page import Figure
from reports.plots.rows import Dot, around_one

MOST_ROWS = 40
COLOURS = {"won": "blue", "lost": "red"}
OF_MEDIANS = ["ratio", "low", "high", "of_medians", "of_medians_low", "of_medians_high", "target"]


def ratios(
    name: str, rows: pd.DataFrame, *, other: str, label: Callable[[pd.Series], str], heads: tuple[str, str],
    beside: Callable[[pd.Series], tuple[str, str]], columns: list[str], remark: str = "",
) -> Figure:  # fmt: skip
    """Draw the first rows of the frame that contests.points makes, each by the other's; other: what that one is called.

    label: of a row; heads, beside: two columns besides the ratio; columns: what else the data holds.
    """
    shown = rows.head(MOST_ROWS)
    drawn = [
        Dot(
            label(row), row["low"], row["high"], row["of_medians"], ratio=row["ratio"], least=row["of_medians_low"],
            most=row["of_medians_high"], target=float(row["target"] or "nan"),
            colour=COLOURS.get(row["verdict"], "muted"), notes=_notes(row, beside) if row["jobs"] else ("",) * 4,
            missing="failed" if row["failed"] else "not run",
        )
        for _, row in shown.iterrows()
    ]  # fmt: skip
    title = f"Step time by the {other}'s"
    caption = (
        "Dot and whiskers: paired ratio with its interval. Open circle and pale band: ratio of medians with its range "
        f"over jobs. Dashed: the target. {remark}{' ' if remark else ''}Grey: undecided, as the interval holds 1 or is "
        "of one job."
    )
    if len(rows) > len(shown):
        caption += f" The first {MOST_ROWS} contests."
    said = [
        f"{' '.join(label(row).split())}: {row['ratio']:.3f} ({text.span(row['low'], row['high'])})"
        for _, row in shown.iterrows()
        if row["jobs"]
    ]
    sides = ("the engine is faster", f"the {other} is faster")
    drawing = around_one(drawn, sides, "our step time by the peer's", columns=("paired", "interval", *heads))
    data = shown[[*columns, *OF_MEDIANS]]
    return Figure(title, caption, drawing, data, f"{name}-ratios", "Paired ratios. " + ". ".join(said))


def _notes(row: pd.Series, beside: Callable[[pd.Series], tuple[str, str]]) -> tuple[str, ...]:
    return f"{row['ratio']:.3f}", text.span(row["low"], row["high"]), *beside(row)
