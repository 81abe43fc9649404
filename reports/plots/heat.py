"""A heat map: rows by columns in groups, the paler the less, a number in each cell; some cells framed or dotted."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from reports.plots.canvas import LETTER, canvas, width_of, write
from reports.plots.svg import COLOURS, styled
from reports.text import clean

ROW, COLUMN, GAP, TOP, BOTTOM = 38.0, 40.0, 8.0, 78.0, 10.0
PALEST, FULLEST = 0.05, 0.7
LETTERS = 30


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell has a share of the fullest colour, from 0 to 1, and words in it; it is none if the share is NaN."""

    share: float
    words: str
    framed: bool = False
    dotted: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Columns that stand together under a head, and under a broader one that groups in a row may share."""

    broad: str
    head: str
    columns: tuple[str, ...]


@styled
def heat(
    rows: Sequence[tuple[str, str]], groups: Sequence[Group], cells: Mapping[tuple[int, int, int], Cell],
    marks: tuple[str, str],
) -> Figure:  # fmt: skip
    """Draw rows, first on top, with a name and a quieter line below it, and cells by (row, group, column in it); where
    there is none the way wasn't there. marks say what a frame means, and a dot.
    """
    names = [(clean(first, LETTERS), clean(second, LETTERS)) for first, second in rows]
    left = 14 + max((width_of(words) for pair in names for words in pair), default=0)
    starts = [
        sum(len(group.columns) * COLUMN + GAP for group in groups[:place]) for place in range(len(groups))
    ]  # fmt: skip
    wide = sum(len(group.columns) * COLUMN + GAP for group in groups) - GAP
    tall = ROW * max(len(rows), 1)
    figure, axes = canvas(left + wide + 8, TOP + tall + BOTTOM, left=left, right=8, top=TOP, bottom=BOTTOM)
    axes.set(xlim=(0, wide), ylim=(tall, 0), xticks=(), yticks=())
    axes.spines["bottom"].set_visible(False)
    for (row, group, column), cell in cells.items():
        _draw(axes, cell, starts[group] + COLUMN * column, ROW * row)
    for row, (first, second) in enumerate(names):
        write(figure, left - 8, TOP + ROW * row + 13, first, "ink", "right")
        write(figure, left - 8, TOP + ROW * row + 27, second, "muted", "right")
    for place, head in enumerate(groups):
        if place == 0 or groups[place - 1].broad != head.broad:
            write(figure, left + starts[place], 40, head.broad, "ink", "left", weight="bold")
        write(figure, left + starts[place], 55, head.head, "muted", "left")
        for column, words in enumerate(head.columns):
            write(figure, left + starts[place] + COLUMN * (column + 0.5), 70, words, "ink", "center")
    write(figure, 1, 14, f"▢ {marks[0]}", "ink", "left", weight="bold")
    write(figure, 1 + LETTER * (len(marks[0]) + 5), 14, f"○ {marks[1]}", "muted", "left", weight="bold")
    return figure


def _draw(axes: Axes, cell: Cell, x: float, y: float) -> None:
    if not math.isfinite(cell.share):
        axes.text(x + COLUMN / 2, y + ROW / 2, "\u2013", color=COLOURS["muted"], ha="center", va="center_baseline")
        return
    depth = PALEST + (FULLEST - PALEST) * min(max(cell.share, 0.0), 1.0)
    box = (x + 1, y + 1)
    axes.add_patch(Rectangle(box, COLUMN - 2, ROW - 2, facecolor=COLOURS["blue"], alpha=depth, linewidth=0))
    if cell.framed:
        inner = (x + 2, y + 2)
        axes.add_patch(Rectangle(inner, COLUMN - 4, ROW - 4, fill=False, edgecolor=COLOURS["ink"], linewidth=2.4))
    if cell.dotted:
        axes.plot(
            [x + COLUMN - 9], [y + 9], marker="o", markersize=4.5, markerfacecolor=COLOURS["paper"],
            markeredgecolor=COLOURS["ink"],
        )  # fmt: skip
    words = axes.text(x + COLUMN / 2, y + ROW / 2 + 2, cell.words, color=COLOURS["ink"], ha="center", va="center")
    words.set_verticalalignment("center_baseline")
