"""A chart draws a figure through the nights: a dot a night, reference and band, changes, and what was updated below.

Dots are strokes without a length, of which one path holds all: a page has many charts of many nights.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from reports import text
from reports.nights.detector import Floats
from reports.plots.canvas import LETTER, WIDTH, canvas, format_ticks, plain, rule, write
from reports.plots.svg import COLOURS, TITLE, styled

HEIGHT, TOP, BOTTOM, RIGHT = 214.0, 40.0, 44.0, 12.0
MOST_NIGHTS = 365
"""A chart shows at most this many nights, the last ones."""
MOST_TITLED = 60
"""If a chart has more ticks of one kind, they share a title."""
FAR = 3.0
"""Values farther than this many widths beyond the usual range stand at the edge, unless they are of the last nights."""
LATELY = 12
"""The last nights, so many, are seen in any case."""
DENSE = 100
"""Dots are smaller in a chart of more nights."""
LARGEST = 1e300
"""Matplotlib can make no scale for larger values."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something happened with the night at that position. words are its title, and label stands beside it, if any.

    kind says whether a figure changed for the worse or for the better, or something of the machine was updated; what
    changes from night to night, such as nodes, is quiet.
    """

    at: int
    words: str
    kind: Literal["worse", "better", "update", "quiet"]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Track:
    """A figure has a value, the least and the most of its jobs, in each of the nights at these positions.

    nights are the names of all of the system, and alarms the positions of those with an alarm. usual is what was
    expected of each, in a band from low to high; they are NaN where nothing was.
    """

    nights: Sequence[str]
    unit: str
    at: Sequence[int]
    values: Sequence[float]
    least: Sequence[float]
    most: Sequence[float]
    alarms: frozenset[int]
    usual: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    marks: Sequence[Mark]


@styled
def chart(track: Track) -> Figure:
    """Draw the last MOST_NIGHTS nights."""
    first = max(0, len(track.nights) - MOST_NIGHTS)
    factor, unit = scale(track.unit, track.values)
    every = (track.at, track.values, track.least, track.most, track.usual, track.low, track.high)
    rows = np.array(every, dtype=float)[:, np.array(track.at) >= first]
    rows[1:] = (rows[1:] / factor).clip(0, LARGEST)
    expected = np.isfinite(rows[4])
    low, high = _limits(rows[1], [*rows[1, -LATELY:], *rows[4, expected]])
    left = 12 + LETTER * max(len(plain(tick)) for tick in MaxNLocator(4).tick_values(low, high))
    figure, axes = canvas(WIDTH, HEIGHT, left=left, right=RIGHT, top=TOP, bottom=BOTTOM)
    room = max(0.5, 0.015 * (len(track.nights) - first))
    axes.set_xlim(first - room, len(track.nights) - 1 + room)
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    format_ticks(axes.yaxis)
    axes.tick_params(axis="y", length=0)
    rule(axes, "y")
    _name_nights(axes, track.nights, first)
    if expected.any():
        axes.fill_between(rows[0], *rows[5:7].clip(low, high), color=COLOURS["muted"], alpha=0.16, linewidth=0)
        axes.plot(rows[0], rows[4], color=COLOURS["muted"], linewidth=1.0)
    _draw_dots(axes, rows, track.alarms, low, high)
    _draw_marks(figure, axes, [mark for mark in track.marks if mark.at >= first])
    write(figure, 1, 12, unit, "muted", "left")
    return figure


def scale(unit: str, values: Sequence[float]) -> tuple[float, str]:
    """Return what values are divided by, and the unit that they then have."""
    middle = float(np.median(values))
    if unit == "B":
        return (2.0**30, "GiB") if middle >= 2**30 else (2.0**20, "MiB")
    if unit == "x" or (unit == "s" and middle >= 1):
        return 1.0, {"x": "times", "s": "seconds"}[unit]
    factor, letter = text.prefix(middle)
    return factor, f"{letter}{unit}"


def _limits(values: Floats, always: Iterable[float]) -> tuple[float, float]:
    """The scale spans all values but those far off the others, and what is to be seen in any case."""
    start, end = np.quantile(values, (0.05, 0.95))
    reach = FAR * max(end - start, 0.005 * abs(end))
    seen = [*values[(values >= start - reach) & (values <= end + reach)], *always]
    pad = 0.08 * (max(seen) - min(seen)) or 0.01 * abs(max(seen)) or 1.0
    return min(seen) - pad, max(seen) + pad


def _name_nights(axes: Axes, nights: Sequence[str], first: int) -> None:
    names = [text.clean(night, 17) for night in nights]
    short = [night[:10] for night in names]
    if len(set(short)) == len(short):  # dates alone tell them apart
        names = short
    room = axes.bbox.width / (LETTER * max(map(len, names[first:])) + 14)
    last = len(names) - 1
    ticks = np.unique(np.linspace(first, last, max(2, min(int(room), last - first + 1))).round().astype(int))
    axes.xaxis.set_major_locator(FixedLocator(ticks.tolist()))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: names[round(at)]))
    axes.tick_params(axis="x", length=0, pad=18)
    for label, tick in zip(axes.get_xticklabels(), ticks, strict=True):
        label.set_horizontalalignment("left" if tick == first else "right" if tick == last else "center")


Cap: TypeAlias = Literal["round", "projecting", "butt"]


def _draw_dots(axes: Axes, rows: Floats, alarms: frozenset[int], low: float, high: float) -> None:
    """Draw a dot a night, red and square in those with an alarm; a triangle at the edge for what lies beyond."""
    width = 3.0 if rows.shape[1] > DENSE else 4.5
    inside = (rows[1] >= low) & (rows[1] <= high)
    alarm = np.isin(rows[0], list(alarms))
    several = rows[:, rows[3] > rows[2]]
    _strokes(axes, several[0], several[2].clip(low, high), several[3].clip(low, high), "blue", width / 3, alpha=0.35)
    kinds: tuple[tuple[npt.NDArray[np.bool_], str, float, Cap], ...] = (
        (~alarm, "blue", width, "round"), (alarm, "red", width + 1, "projecting")
    )  # fmt: skip
    for chosen, colour, wide, cap in kinds:
        at, value = rows[:2, chosen & inside]
        _strokes(axes, at, value, value, colour, wide, cap=cap)
        for beyond, edge, marker in ((rows[1] > high, high, 6), (rows[1] < low, low, 7)):  # carets, tip at the edge
            out = rows[0, chosen & beyond]
            if len(out):
                axes.plot(
                    out, [edge] * len(out), linestyle="none", marker=marker, markersize=6, color=COLOURS[colour],
                    markeredgewidth=0, clip_on=False,
                )  # fmt: skip


def _strokes(
    axes: Axes, at: Floats, start: Floats, end: Floats, colour: str, width: float, *,
    cap: Cap = "butt", alpha: float = 1.0, below: bool = False, gid: str = "",
) -> None:  # fmt: skip
    """Draw upright strokes as one path. If below, start and end are pixels above the horizontal scale, not values."""
    if not len(at):
        return
    corners = np.stack([at, start, at, end], axis=1).reshape(-1, 2)
    path = Path(corners, [Path.MOVETO, Path.LINETO] * len(at))
    path.should_simplify = False
    patch = PathPatch(path, fill=False, edgecolor=COLOURS[colour], linewidth=width, capstyle=cap, alpha=alpha, zorder=3)
    if below:
        patch.set(transform=axes.get_xaxis_transform(), clip_on=False)
    axes.add_artist(patch)
    if gid:
        patch.set_gid(gid)


def _draw_marks(figure: Figure, axes: Axes, marks: Sequence[Mark]) -> None:
    """Draw changes as dashes from top to bottom, and updates as ticks below the scale."""
    free = 0.0
    for mark in marks:
        if mark.kind in ("worse", "better"):
            colour = "red" if mark.kind == "worse" else "green"
            axes.axvline(
                mark.at - 0.5, color=COLOURS[colour], linewidth=1.6, linestyle=(0, (3, 2)), gid=TITLE + mark.words
            )
            free = _label(figure, axes, mark.at - 0.5, mark.label, colour, free)
    for kind, below, colour, width in (("update", -16, "ink", 2.5), ("quiet", -9, "muted", 1.5)):
        same = [mark for mark in marks if mark.kind == kind]
        for group in [[mark] for mark in same] if len(same) <= MOST_TITLED else [same]:
            words = group[0].words if len(group) == 1 else f"other than before in {len(group)} nights: see the CSV"
            at = np.array([mark.at for mark in group], dtype=float)
            start, end = (np.full(len(at), pixels / axes.bbox.height) for pixels in (below, -3))
            _strokes(axes, at, start, end, colour, width, below=True, gid=TITLE + words)


def _label(figure: Figure, axes: Axes, at: float, words: str, colour: str, free: float) -> float:
    """Write words above a change if there is room from `free` pixels on; returns where room begins then."""
    half = LETTER * len(words) / 2
    x = min(max(float(axes.transData.transform((at, 0))[0]), half + 2), WIDTH - half - 2)
    if x - half < free:
        return free
    write(figure, x, TOP - 12, words, colour, "center", weight="bold")
    return x + half + 6
