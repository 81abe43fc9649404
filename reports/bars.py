"""Horizontal stacked bars, the parts of each named above, with numbers in columns beside them where asked for."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from reports.charts import LETTER, WIDTH, canvas, plain
from reports.svg import COLOURS, inline, style
from reports.text import clean

ROW, HEADING, TOP, BOTTOM = 24.0, 26.0, 34.0, 40.0
LABEL_LETTERS = 34


@dataclass(frozen=True, slots=True)
class Bars:
    """One part of every stacked bar."""

    label: str
    values: Sequence[float]
    colour: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its name; the heading of the group that begins with it; the range of its whole, drawn as a whisker.

    notes: what stands in each column beside the bars; pale: those of the columns that are written in a quiet colour.
    missing: what stands in place of a bar that has no part. mark: where an upright mark stands, NaN for none.
    """

    label: str
    heading: str = ""
    low: float = math.nan
    high: float = math.nan
    notes: tuple[str, ...] = ()
    pale: tuple[int, ...] = ()
    missing: str = "not measured"
    mark: float = math.nan


def stacked(
    parts: Sequence[Bars], bars: Sequence[Bar], caption: str, *, name: str, title: str, description: str,
    columns: Sequence[str] = (), mark: str = "", width: float = WIDTH,
) -> Markup:  # fmt: skip
    """The bars, first on top. caption: of the scale; columns: the heads of the notes, each in two lines at most.

    mark: what the bars' marks are.
    """
    labels = [clean(bar.label, LABEL_LETTERS if width > WIDTH else 22) for bar in bars]
    left = 12 + LETTER * max((len(label) for label in labels), default=0)
    widths = [column_width(head, [bar.notes[place] for bar in bars if bar.notes]) for place, head in enumerate(columns)]
    right = 16 + sum(widths)
    places = list(itertools.accumulate(ROW + HEADING * bool(bar.heading) for bar in bars))
    top = TOP + (18 if columns else 0)
    tall = places[-1] if places else ROW
    height = top + tall + BOTTOM
    with style():
        figure, axes = canvas(width, height, left=left, right=right, top=top, bottom=BOTTOM)
        centres = [place - ROW / 2 for place in places]
        longest = _draw_parts(axes, parts, bars, centres)
        axes.set_xlim(0, longest * 1.04 or 1.0)
        axes.set_ylim(tall, 0)
        axes.set_yticks(centres, labels)
        axes.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
        axes.xaxis.set_major_locator(MaxNLocator(5) if longest else FixedLocator([0.0]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
        axes.grid(axis="x", color=COLOURS["rule"], linewidth=0.8)
        axes.set_xlabel(caption, labelpad=6)
        _legend(figure, parts, mark if any(math.isfinite(bar.mark) for bar in bars) else "")
        for bar, place in zip(bars, places, strict=True):
            if bar.heading:
                write(figure, 1.0, top + place - ROW - HEADING / 2, bar.heading, "muted", "left", weight="bold")
        notes = [(bar.notes, bar.pale) for bar in bars]
        write_columns(figure, columns, widths, notes, [top + centre for centre in centres], top - 10)
        return inline(figure, name=name, title=title, description=description)


def column_width(head: str, notes: Sequence[str]) -> float:
    """Pixels that a column of notes takes."""
    return 18 + LETTER * max(len(words) for words in (*head.split("\n"), *notes))


def _draw_parts(axes: Axes, parts: Sequence[Bars], bars: Sequence[Bar], centres: Sequence[float]) -> float:
    """Draw every bar with its whisker; returns the longest reach."""
    reach = [0.0] * len(bars)
    for part in parts:
        values = [value if math.isfinite(value) else 0.0 for value in part.values]
        axes.barh(centres, values, left=reach, height=0.62 * ROW, color=COLOURS[part.colour], linewidth=0)
        reach = [start + value for start, value in zip(reach, values, strict=True)]
    for place, (bar, centre) in enumerate(zip(bars, centres, strict=True)):
        if not any(math.isfinite(part.values[place]) for part in parts):
            axes.text(0, centre, f" {bar.missing}", color=COLOURS["muted"], va="center", style="italic")
        elif bar.high > bar.low:
            axes.hlines(centre, bar.low, bar.high, color=COLOURS["ink"], linewidth=1.3)
            axes.vlines((bar.low, bar.high), centre - 4, centre + 4, color=COLOURS["ink"], linewidth=1.3)
        if math.isfinite(bar.mark):
            axes.vlines(bar.mark, centre - 0.44 * ROW, centre + 0.44 * ROW, color=COLOURS["ink"], linewidth=2.4)
    highs = [end for bar in bars for end in (bar.high, bar.mark) if math.isfinite(end)]
    return max((*reach, *highs), default=0.0)


def write(figure: Figure, x: float, y: float, words: str, colour: str, align: str, weight: str = "normal") -> None:
    """Text at so many pixels from the left and from the top."""
    width, height = figure.get_figwidth() * 72, figure.get_figheight() * 72
    figure.text(x / width, 1 - y / height, words, color=COLOURS[colour], ha=align, va="center_baseline", weight=weight)


def write_columns(
    figure: Figure, heads: Sequence[str], widths: Sequence[float],
    notes: Sequence[tuple[Sequence[str], Sequence[int]]], centres: Sequence[float], head: float,
) -> None:  # fmt: skip
    """Columns of words, flush right at the figure's right edge.

    notes: of each row its words, one a column or none, and which of them are pale; centres, head: of the rows and of
    the heads' last line, in pixels from the top.
    """
    width = figure.get_figwidth() * 72
    for place, title in enumerate(heads):
        end = width - 8 - sum(widths[place + 1 :])
        for line, words in enumerate(reversed(title.split("\n"))):
            write(figure, end, head - 13 * line, words, "muted", "right")
        for (row, pale), centre in zip(notes, centres, strict=True):
            if row:
                write(figure, end, centre, row[place], "muted" if place in pale else "ink", "right")


def _legend(figure: Figure, parts: Sequence[Bars], mark: str) -> None:
    """The parts' names in their colours, and what the marks are, in one line above the bars."""
    x = 1.0
    named = [(f"■ {part.label}", part.colour) for part in parts] + ([(f"❙ {mark}", "ink")] if mark else [])
    for words, colour in named:
        write(figure, x, 14, words, colour, "left", weight="bold")
        x += LETTER * (len(words) + 3)
