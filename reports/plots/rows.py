"""Rows on one scale with their labels left and numbers in columns beside them: stacked bars, or ratios around 1."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from reports.plots.canvas import WIDE, WIDTH, canvas, fitted, format_ticks, legend, rule, width_of, write
from reports.plots.svg import COLOURS, styled
from reports.text import clean

ROW, HEADING, TOP, BOTTOM = 24.0, 26.0, 34.0, 40.0
LETTERS, MOST_LETTERS = 22, 34
"""Most letters of a label in a narrow and in a wide drawing."""
FARTHEST = 4.0
"""Ratio above which, or below 1 over which, one stands at the edge: an odd ratio must not flatten the others."""


@dataclass(frozen=True, slots=True)
class Bars:
    label: str
    values: Sequence[float]
    colour: str


@dataclass(frozen=True, slots=True)
class Row:
    """Name and numbers of a row."""

    label: str
    low: float = math.nan
    """Lower end of the range of its whole, which is drawn as a whisker."""
    high: float = math.nan
    mark: float = math.nan
    """Place of an upright mark, NaN for none."""
    heading: str = ""
    """Heading of the group that begins with it."""
    notes: tuple[str, ...] = ()
    """Words in each column beside it."""
    pale: tuple[int, ...] = ()
    """Columns that are written in a quiet colour."""
    missing: str = "not measured"
    """Words in place of a row without a value."""


@dataclass(frozen=True, slots=True)
class Dot(Row):
    """Value, such as a ratio, with the interval around it; NaN is not drawn. The mark is drawn as an open circle."""

    ratio: float = math.nan
    least: float = math.nan
    """Lower end of a wider spread, drawn as a pale band."""
    most: float = math.nan
    target: float = math.nan
    """Place of a tick that the value is to stay left of."""
    colour: str = "muted"


@styled
def stacked(
    parts: Sequence[Bars],
    rows: Sequence[Row],
    caption: str,
    *,
    columns: Sequence[str] = (),
    mark: str = "",
    width: float = WIDTH,
) -> Figure:
    """Draw bars, first on top. caption: of the scale; columns: heads of the notes, of two lines at most; mark: meaning
    of the marks.
    """
    figure, axes, centres = _frame(rows, caption, columns, width, top=TOP + (18 if columns else 0))
    reach = [0.0] * len(rows)
    for part in parts:
        values = [value if math.isfinite(value) else 0.0 for value in part.values]
        axes.barh(centres, values, left=reach, height=0.62 * ROW, color=COLOURS[part.colour], linewidth=0)
        reach = [start + value for start, value in zip(reach, values, strict=True)]
    for place, (row, centre) in enumerate(zip(rows, centres, strict=True)):
        if not any(math.isfinite(part.values[place]) for part in parts):
            axes.text(0, centre, f" {row.missing}", color=COLOURS["muted"], va="center", style="italic")
        else:
            _whisker(axes, row.low, row.high, centre, COLOURS["ink"])
        if math.isfinite(row.mark):
            axes.plot(row.mark, centre, marker="|", markersize=0.88 * ROW, color=COLOURS["ink"], markeredgewidth=2.4)
    highs = [end for row in rows for end in (row.high, row.mark) if math.isfinite(end)]
    longest = max((*reach, *highs), default=0.0)
    axes.set_xlim(0, longest * 1.04 or 1.0)
    axes.xaxis.set_major_locator(MaxNLocator(5) if longest else FixedLocator([0.0]))
    marked = mark and any(math.isfinite(row.mark) for row in rows)
    legend(figure, [*((f"■ {part.label}", part.colour) for part in parts), *([(f"❙ {mark}", "ink")] if marked else [])])
    return figure


@styled
def around_one(
    rows: Sequence[Dot], sides: tuple[str, str], caption: str, *, columns: Sequence[str] = (), width: float = 900.0
) -> Figure:
    """Draw ratios, first on top. sides: what it means to stand left and right of 1; columns: heads of the notes."""
    figure, axes, centres = _frame(rows, caption, columns, width, top=TOP)
    values = [value for row in rows for value in (row.ratio, row.low, row.high, row.least, row.most, row.mark)]
    known = [_near(value) for value in values if math.isfinite(value)]
    low, high = min([*known, 0.9]), max([*known, 1.1])
    low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.axvline(1.0, color=COLOURS["ink"], linewidth=1.2)
    for row, y in zip(rows, centres, strict=True):
        if not math.isfinite(row.ratio):
            place: dict[str, Any] = {"textcoords": "offset points", "va": "center", "style": "italic"}
            axes.annotate(clean(row.missing, 24), (1.0, y), (8, 0), color=COLOURS["muted"], **place)
            continue
        if row.most >= row.least:
            axes.hlines(y, _near(row.least), _near(row.most), color=COLOURS[row.colour], linewidth=7.0, alpha=0.25)
        if low < row.target < high:
            axes.vlines(row.target, y - 8, y + 8, color=COLOURS["ink"], linewidth=1.2, linestyle=(0, (2, 1.5)))
        _whisker(axes, _near(row.low), _near(row.high), y, COLOURS[row.colour])
        axes.plot(_near(row.mark), y, marker="o", markersize=6.5, mfc=COLOURS["paper"], mec=COLOURS[row.colour])
        axes.plot(_near(row.ratio), y, marker="o", markersize=6.5, color=COLOURS[row.colour], markeredgewidth=0)
    one = float(axes.transData.transform((1.0, 0.0))[0])
    write(figure, one - 8, TOP - 12, f"\u2190 {sides[0]}", "blue", "right", weight="bold")
    write(figure, one + 8, TOP - 12, f"{sides[1]} \u2192", "red", "left", weight="bold")
    return figure


@styled
def dots(
    rows: Sequence[Dot],
    caption: str,
    named: Sequence[tuple[str, str]],
    *,
    columns: Sequence[str] = (),
    width: float = WIDE,
) -> Figure:
    """Draw values on a scale from 0, first on top, each with its interval, an open circle (mark) and a tick (target).

    caption: of the scale; named: what the signs mean, with their colours; columns: the heads of the notes.
    """
    figure, axes, centres = _frame(rows, caption, columns, width, top=TOP + 18)
    ends = [end for row in rows for end in (row.ratio, row.high, row.mark, row.target) if math.isfinite(end)]
    axes.set_xlim(0, 1.04 * max(ends, default=1.0))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    for row, y in zip(rows, centres, strict=True):
        axes.plot(row.target, y, marker="|", markersize=0.6 * ROW, color=COLOURS["muted"], markeredgewidth=2.0)
        _whisker(axes, row.low, row.high, y, COLOURS[row.colour])
        axes.plot(row.mark, y, marker="o", markersize=7.5, mfc="none", mec=COLOURS["red"])
        axes.plot(row.ratio, y, marker="o", markersize=5.5, color=COLOURS[row.colour], markeredgewidth=0)
    legend(figure, named)
    return figure


def _frame(
    rows: Sequence[Row], caption: str, columns: Sequence[str], width: float, top: float
) -> tuple[Figure, Axes, list[float]]:
    """Draw labels, headings, columns and the scale's caption; returns the middle of each row, too."""
    labels = [fitted(row.label, MOST_LETTERS if width > WIDTH else LETTERS) for row in rows]
    left = 12 + max(map(width_of, labels), default=0)
    notes = [row.notes for row in rows if row.notes]
    widths = [
        18 + max(map(width_of, (*head.split("\n"), *(words[place] for words in notes))))
        for place, head in enumerate(columns)
    ]
    places = list(itertools.accumulate(ROW + HEADING * bool(row.heading) for row in rows))
    centres = [place - ROW / 2 for place in places]
    tall = places[-1] if places else ROW
    figure, axes = canvas(width, top + tall + BOTTOM, left=left, right=16 + sum(widths), top=top, bottom=BOTTOM)
    axes.set_ylim(tall, 0)
    axes.set_yticks(centres, labels)
    axes.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
    axes.set_xlabel(caption, labelpad=6)
    format_ticks(axes.xaxis)
    rule(axes, "x")
    for place, head in enumerate(columns):
        end = width - 8 - sum(widths[place + 1 :])
        for line, words in enumerate(reversed(head.split("\n"))):
            write(figure, end, top - 11 - 13 * line, words, "muted", "right")
        for row, centre in zip(rows, centres, strict=True):
            if row.notes:
                write(figure, end, top + centre, row.notes[place], "muted" if place in row.pale else "ink", "right")
    for row, centre in zip(rows, centres, strict=True):
        write(figure, 1.0, top + centre - (ROW + HEADING) / 2, row.heading, "muted", "left", weight="bold")
    return figure, axes, centres


def _whisker(axes: Axes, low: float, high: float, y: float, colour: str) -> None:
    if high > low:
        axes.errorbar((low + high) / 2, y, xerr=(high - low) / 2, color=colour, capsize=4, elinewidth=1.6)


def _near(ratio: float) -> float:
    return min(max(ratio, 1 / FARTHEST), FARTHEST) if math.isfinite(ratio) else ratio
