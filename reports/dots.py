"""Ratios as dots around 1, a row each with its interval, and numbers in columns beside them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from reports.bars import BOTTOM, ROW, column_width, write, write_columns
from reports.charts import LETTER, canvas, plain
from reports.svg import COLOURS, inline, style
from reports.text import clean

LABEL_LETTERS = 30
TOP = 34.0
FARTHEST = 4.0
"""What lies beyond so many times 1, or 1 over it, stands at the edge: one odd contest must not flatten the others."""


@dataclass(frozen=True, slots=True)
class Dot:
    """One row. low, high: the interval around the ratio; least, most: a wider spread, drawn as a pale band.

    mark: another value of it, drawn as an open circle; target: a tick that it is to stay left of. NaN is not drawn, and
    without a ratio `missing` stands in its place. notes: what stands in each column beside it.
    """

    label: str
    ratio: float
    low: float
    high: float
    least: float = math.nan
    most: float = math.nan
    mark: float = math.nan
    target: float = math.nan
    colour: str = "muted"
    notes: tuple[str, ...] = ()
    missing: str = "failed"


def around_one(
    dots: Sequence[Dot], sides: tuple[str, str], *, name: str, title: str, description: str,
    columns: Sequence[str] = (), width: float = 900.0, scale: str = "our step time by the peer's",
) -> Markup:  # fmt: skip
    """The rows, first on top. sides: what it means to stand left and right of 1; columns: the heads of the notes;
    scale: what the ratio is.
    """
    labels = [clean(dot.label, LABEL_LETTERS) for dot in dots]
    left = 12 + LETTER * max(map(_letters, labels), default=0)
    widths = [column_width(head, [dot.notes[place] for dot in dots if dot.notes]) for place, head in enumerate(columns)]
    tall = ROW * max(len(dots), 1)
    centres = [ROW * (place + 0.5) for place in range(len(dots))]
    height = TOP + tall + BOTTOM
    with style():
        figure, axes = canvas(width, height, left=left, right=16 + sum(widths), top=TOP, bottom=BOTTOM)
        axes.set_xlim(*_limits(dots))
        axes.set_ylim(tall, 0)
        axes.grid(axis="x", color=COLOURS["rule"], linewidth=0.8)
        axes.axvline(1.0, color=COLOURS["ink"], linewidth=1.2)
        for dot, centre in zip(dots, centres, strict=True):
            _draw(axes, dot, centre)
        axes.set_yticks(centres, labels)
        axes.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
        axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
        axes.set_xlabel(scale, labelpad=6)
        one = left + axes.transData.transform((1.0, 0.0))[0] - axes.bbox.x0
        write(figure, one - 8, TOP - 12, f"\u2190 {sides[0]}", "blue", "right", weight="bold")
        write(figure, one + 8, TOP - 12, f"{sides[1]} \u2192", "red", "left", weight="bold")
        write_columns(figure, columns, widths, [(dot.notes, ()) for dot in dots], [TOP + y for y in centres], TOP - 12)
        return inline(figure, name=name, title=title, description=description)


def _letters(label: str) -> int:
    """The length of a label in letters; one that isn't of the Latin alphabet may be twice as wide."""
    return sum(1 if letter.isascii() else 2 for letter in label)


def _limits(dots: Sequence[Dot]) -> tuple[float, float]:
    """From the smallest to the largest that is drawn, 1 with some room on both sides always among it."""
    values = [value for dot in dots for value in (dot.ratio, dot.low, dot.high, dot.least, dot.most, dot.mark)]
    known = [min(max(value, 1 / FARTHEST), FARTHEST) for value in values if math.isfinite(value)]
    low, high = min([*known, 0.9]), max([*known, 1.1])
    pad = 0.06 * (high - low)
    return low - pad, high + pad


def _draw(axes: Axes, dot: Dot, y: float) -> None:
    if not math.isfinite(dot.ratio):
        axes.annotate(
            clean(dot.missing, 24), (1.0, y), (8, 0), textcoords="offset points", color=COLOURS["muted"], va="center",
            style="italic",
        )  # fmt: skip
        return
    least, most, low, high, ratio, mark = (
        min(max(value, 1 / FARTHEST), FARTHEST) if math.isfinite(value) else value
        for value in (dot.least, dot.most, dot.low, dot.high, dot.ratio, dot.mark)
    )
    colour = COLOURS[dot.colour]
    if most >= least:
        axes.hlines(y, least, most, color=colour, linewidth=7.0, alpha=0.25)
    axes.hlines(y, low, high, color=colour, linewidth=1.6)
    axes.vlines((low, high), y - 4, y + 4, color=colour, linewidth=1.6)
    if math.isfinite(dot.target) and axes.get_xlim()[0] < dot.target < axes.get_xlim()[1]:
        axes.vlines(dot.target, y - 8, y + 8, color=COLOURS["ink"], linewidth=1.2, linestyle=(0, (2, 1.5)))
    if math.isfinite(mark):
        axes.plot([mark], [y], marker="o", markersize=6.5, markerfacecolor=COLOURS["paper"], markeredgecolor=colour)
    axes.plot([ratio], [y], marker="o", markersize=6.5, color=colour, markeredgewidth=0)
