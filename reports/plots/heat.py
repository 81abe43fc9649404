"""A heat map: rows by columns in groups, the paler the less, a number in each cell; some cells framed or dotted."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from reports.plots.canvas import canvas, legend, width_of, write
from reports.plots.svg import COLOURS, styled
from reports.text import clean

ROW, COLUMN, GAP, TOP, BOTTOM = 38.0, 40.0, 8.0, 78.0, 10.0
PALEST, FULLEST = 0.05, 0.7
LETTERS = 30
BLUES = [f"{COLOURS['blue']}{round(255 * alpha):02x}" for alpha in (PALEST, FULLEST)]


@dataclass(frozen=True, slots=True)
class Cell:
    """Share of the fullest colour, from 0 to 1 or NaN for none, and words in the cell."""

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
    rows: Sequence[tuple[str, str]],
    groups: Sequence[Group],
    cells: Mapping[tuple[int, int, int], Cell],
    marks: tuple[str, str] | None = None,
) -> Figure:
    """Draw rows, first on top, with a name and a quieter line below it, and cells by (row, group, column in it).

    marks: meaning of a frame, and of a dot, if there are such.
    """
    names = [(clean(first, LETTERS), clean(second, LETTERS)) for first, second in rows]
    left = 14 + max((width_of(words) for pair in names for words in pair), default=0)
    starts = np.cumsum([0.0, *(len(group.columns) * COLUMN + GAP for group in groups)])
    wide, tall = starts[-1] - GAP, ROW * max(len(rows), 1)
    figure, axes = canvas(left + wide + 8, TOP + tall + BOTTOM, left=left, right=8, top=TOP, bottom=BOTTOM)
    axes.set(xlim=(0, wide), ylim=(tall, 0), xticks=(), yticks=())
    axes.spines["bottom"].set_visible(False)
    colours = LinearSegmentedColormap.from_list("blues", BLUES)
    for place, group in enumerate(groups):
        x, y = starts[place] + COLUMN * np.arange(len(group.columns) + 1), ROW * np.arange(len(rows) + 1)
        shares = np.full((len(rows), len(group.columns)), math.nan)
        for (row, _, column), cell in ((at, cell) for at, cell in cells.items() if at[1] == place):
            shares[row, column] = cell.share
            middle = (x[column] + COLUMN / 2, y[row] + ROW / 2 + 2)
            words = cell.words if math.isfinite(cell.share) else "\u2013"
            axes.text(*middle, words, color=COLOURS["ink"], ha="center", va="center_baseline")
            if cell.framed:
                corner = (x[column] + 2, y[row] + 2)
                axes.add_patch(Rectangle(corner, COLUMN - 4, ROW - 4, fill=False, ec=COLOURS["ink"], lw=2.4, zorder=2))
            if cell.dotted:
                corner = (x[column] + COLUMN - 9, y[row] + 9)
                axes.plot(*corner, marker="o", markersize=4.5, mfc=COLOURS["paper"], mec=COLOURS["ink"])
        axes.pcolormesh(x, y, shares, cmap=colours, vmin=0, vmax=1, edgecolors=COLOURS["paper"], linewidth=2)
        if place == 0 or groups[place - 1].broad != group.broad:
            write(figure, left + starts[place], 40, group.broad, "ink", "left", weight="bold")
        write(figure, left + starts[place], 55, group.head, "muted", "left")
        for column, name in enumerate(group.columns):
            write(figure, left + x[column] + COLUMN / 2, 70, name, "ink", "center")
    for row, pair in enumerate(names):
        for line, (words, colour) in enumerate(zip(pair, ("ink", "muted"), strict=True)):
            write(figure, left - 8, TOP + ROW * row + 13 + 14 * line, words, colour, "right")
    if marks:
        legend(figure, [(f"□ {marks[0]}", "ink"), (f"○ {marks[1]}", "muted")])
    return figure
