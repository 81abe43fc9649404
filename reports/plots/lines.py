"""Lines or dots between two scales, each named right of its end or above the chart."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from reports.plots.canvas import HOLLOW, LETTER, WIDTH, Scale, canvas, format_ticks, legend, plain, rule, write
from reports.plots.svg import COLOURS, styled
from reports.text import clean

HEIGHT, LEFT, RIGHT, BOTTOM = 250.0, 50.0, 16.0, 42.0
TOP = 50.0
"""Room for a legend above."""
LINE_HEIGHT = 13.0
DECADE = 4.0
"""Ratio of the largest to the least value from which scales are logarithmic."""
DOTTED = (0, (1.5, 2.5))
LineKind = Literal[
    "measured", "published", "predicted", "guide", "curve", "backdrop", "best", "rings", "dots", "open dots", "band"
]
_DOT = {"marker": "o", "markersize": 5.5, "markeredgewidth": 0}
_RING = {"marker": "o", "markersize": 10, "markeredgewidth": 1.6, **HOLLOW}
_OPEN = {"markeredgewidth": 1.6, "markerfacecolor": COLOURS["paper"]}
_LOOKS: dict[LineKind, dict[str, Any]] = {
    "measured": {"linewidth": 2.0, **_DOT},
    "published": {"linewidth": 1.4, "linestyle": (0, (4, 2.5)), "markersize": 5, **_OPEN, "markeredgewidth": 1.3},
    "predicted": {"linewidth": 1.6, "linestyle": (0, (7, 3)), "marker": "D", "markersize": 5, "markeredgewidth": 0},
    "guide": {"linewidth": 1.0, "linestyle": DOTTED},
    "curve": {"linewidth": 1.6},
    "backdrop": {"linewidth": 6.0, "alpha": 0.35, "solid_capstyle": "round"},
    "band": {"linewidth": 1.0},
    "best": _RING,
    "rings": _RING | {"linestyle": "none"},
    "dots": _DOT | {"linestyle": "none"},
    "open dots": {"linestyle": "none", "marker": "o", "markersize": 6, **_OPEN},
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line, or dots of one kind: points in order of x, with low and high ends of whiskers."""

    x: Sequence[float]
    y: Sequence[float]
    colour: str
    label: str = ""
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    mark: str = "o"
    kind: LineKind = "measured"
    """Looks: a backdrop is a line that another one covers, best has rings around points, a band is from low to high."""

    @classmethod
    def of(cls, table: pd.DataFrame, x: str, y: str, colour: str, label: str = "", **looks: Any) -> "Line":
        """Return a line through two columns of a table. looks: mark and kind."""
        return cls(table[x].tolist(), table[y].tolist(), colour, label, **looks)

    def between(self, table: pd.DataFrame, low: str, high: str) -> "Line":
        """Return the line with whiskers that end in two columns of its table."""
        return replace(self, low=table[low].tolist(), high=table[high].tolist())


@styled
def lines(chart: Sequence[Line], x: Scale, y: Scale) -> Figure:
    """Draw a line chart, each line named at the right. Points that can't stand on the scale are left out."""
    drawn = _drawable(chart, x, y)
    labels = [clean(line.label, 18) for line in drawn]
    right = RIGHT + LETTER * max(map(len, labels), default=0)
    figure, axes = canvas(WIDTH, HEIGHT, left=46, right=right, bottom=BOTTOM)
    _set_scales(axes, drawn, x, y)
    ends = sorted((axes.transData.transform((line.x[-1], line.y[-1]))[1], i) for i, line in enumerate(drawn))
    for place, (_, i) in zip(_apart([end for end, _ in ends]), ends, strict=True):
        write(figure, WIDTH - right + 7, HEIGHT - place, labels[i], drawn[i].colour, "left", weight="bold")
    _draw(figure, axes, drawn, x, y)
    return figure


@styled
def scatter(groups: Sequence[Line], x: Scale, y: Scale, *, upright: float = math.nan) -> Figure:
    """Draw dots, later groups on top, their names above. upright: where a dotted line stands."""
    drawn = _drawable(groups, x, y)
    figure, axes = canvas(WIDTH, HEIGHT, left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM)
    _set_scales(axes, drawn, x, y)
    if math.isfinite(upright):
        axes.axvline(upright, color=COLOURS["muted"], linewidth=1.0, linestyle=DOTTED)
    _draw(figure, axes, drawn, x, y)
    _name_above(figure, drawn)
    return figure


@styled
def against(groups: Sequence[Line], x: Scale, y: Scale, *, within: float) -> Figure:
    """Draw dots on two equal scales, with the diagonal, and dotted lines a fraction (within) above and below it."""
    drawn = _drawable(groups, x, y)
    values = [*_heights(drawn), *(value for dots in drawn for value in dots.x)]
    low, high = min(values, default=0.0), max(values, default=1.0) or 1.0
    square = WIDTH - LEFT - RIGHT + TOP + BOTTOM
    figure, axes = canvas(WIDTH, square, left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM)
    logarithmic = low > 0 and high > DECADE * low
    ends = (low / 1.2, high * 1.2) if logarithmic else (0.0, 1.1 * high)
    if logarithmic:
        axes.set(xscale="log", yscale="log")
    axes.set(xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        _place_ticks(axis, low, high, logarithmic=logarithmic)
    for slope in (1.0, 1 + within, 1 - within):
        dashes = "-" if slope == 1 else DOTTED
        axes.plot(ends, [slope * end for end in ends], color=COLOURS["muted"], linewidth=1.0, linestyle=dashes)
    _draw(figure, axes, drawn, x, y)
    _name_above(figure, drawn)
    return figure


def _drawable(chart: Iterable[Line], x: Scale, y: Scale) -> list[Line]:
    """Leave out points that are missing, or not positive on a logarithmic scale; such whiskers get no length."""

    def stands(value: float, scale: Scale) -> bool:
        return math.isfinite(value) and (scale.spacing == "linear" or value > 0)

    kept = []
    for line in chart:
        points = [
            (at, value, *(end if stands(end, y) else value for end in ends))
            for at, value, *ends in zip(line.x, line.y, line.low or line.y, line.high or line.y, strict=True)
            if stands(at, x) and stands(value, y)
        ]
        if points:
            xs, ys, lows, highs = (tuple(column) for column in zip(*points, strict=True))
            kept.append(replace(line, x=xs, y=ys, low=lows if line.low else (), high=highs if line.low else ()))
    return kept


def _heights(drawn: Iterable[Line]) -> list[float]:
    return [value for line in drawn for value in (*line.y, *line.low, *line.high)]


def _draw(figure: Figure, axes: Axes, drawn: Sequence[Line], x: Scale, y: Scale) -> None:
    for line in drawn:
        colour, reach = COLOURS[line.colour], None
        looks = _LOOKS[line.kind] | ({"marker": line.mark} if line.kind == "published" else {})
        if line.kind == "band":
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.16, linewidth=0)
        elif line.low:
            middle = np.asarray(line.y)
            reach = np.maximum([middle - line.low, np.asarray(line.high) - middle], 0.0)
        axes.errorbar(line.x, line.y, yerr=reach, color=colour, elinewidth=1.4, **looks)
    if not drawn:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", style="italic")
        axes.set(xticks=(), yticks=())
    format_ticks(axes.xaxis, x.write)
    format_ticks(axes.yaxis, y.write)
    rule(axes, "y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(x.caption, labelpad=6)
    write(figure, 1, 14, y.caption, "muted", "left")  # level and above the axis, where it can be read


def _set_scales(axes: Axes, drawn: Sequence[Line], x: Scale, y: Scale) -> None:
    values = [value for line in drawn for value in line.x]
    if x.spacing == "log2":
        first = math.floor(math.log2(min(values, default=1)) + 0.01)
        final = math.ceil(math.log2(max(values, default=2)) - 0.01)
        widest = LETTER * max(len((x.write or plain)(2.0**power)) for power in range(first, final + 1)) + 8
        step = math.ceil((final - first + 1) * widest / axes.bbox.width)
        margin = 0.03 * (final - first) or 0.5
        axes.set_xscale("log", base=2)
        axes.set_xlim(2.0 ** (first - margin), 2.0 ** (final + margin))
        axes.set_xticks([2.0**power for power in range(first, final + 1, step)])
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        low, high = min(values, default=0), max(values, default=1)
        pad = 0.03 * (high - low) or 0.5
        axes.set_xlim(min(0.0, low) if x.from_zero else low - pad, high + pad)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    heights = _heights(drawn)
    low, high = min(heights, default=0.0), max(heights, default=1.0)
    if y.spacing == "log10":
        axes.set_yscale("log")
        axes.set_ylim(low / 1.4, high * 1.4)
    else:
        pad = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
        axes.set_ylim((min(0.0, low), (high or 1.0) * 1.12) if y.from_zero else (low - pad, high + pad))
    _place_ticks(axes.yaxis, low, high, logarithmic=y.spacing == "log10")


def _place_ticks(axis: Axis, low: float, high: float, *, logarithmic: bool) -> None:
    subs = (1.0,) if high > 20 * low else (1.0, 2.0, 5.0)
    axis.set_major_locator(LogLocator(subs=subs) if logarithmic else MaxNLocator(5))
    axis.set_minor_locator(NullLocator())


def _name_above(figure: Figure, drawn: Iterable[Line]) -> None:
    signs = {"open dots": "○", "rings": "○"}
    legend(figure, [(f"{signs.get(dots.kind, '●')} {dots.label}", dots.colour) for dots in drawn], y=30)


def _apart(places: Sequence[float]) -> list[float]:
    """Move ascending places as little as it takes to stand one line apart.

    >>> _apart([10.0, 12.0, 50.0])
    [4.5, 17.5, 50.0]
    """
    groups: list[tuple[float, int]] = []  # (centre, members)
    for place in places:
        groups.append((place, 1))
        while len(groups) > 1:
            (lower, many), (upper, few) = groups[-2:]
            if upper - lower >= LINE_HEIGHT * (many + few) / 2:
                break
            groups[-2:] = [((lower * many + upper * few) / (many + few), many + few)]
    return [centre + LINE_HEIGHT * (i - (many - 1) / 2) for centre, many in groups for i in range(many)]
