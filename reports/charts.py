"""Lines between two scales, as inline SVG, and what every kind of chart has in common."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from reports.svg import COLOURS, inline, new_figure, style
from reports.text import clean

WIDTH, HEIGHT = 360, 250
LETTER = 6.6  # mean width of a letter in pixels, on the wide side
LINE_HEIGHT = 13.0


@dataclass(frozen=True, slots=True)
class Line:
    """One line: points in order of x; low and high are whiskers.

    kind: "measured" has marks, "published" is dashed with open marks, "predicted" in long dashes with diamonds,
    "guide" dotted, "curve" has no marks, "backdrop" is broad and pale, for a line that another one covers, "best" has
    rings around its points, "rings" is nothing else.
    """

    x: Sequence[float]
    y: Sequence[float]
    colour: str
    label: str = ""
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    mark: str = "o"
    kind: Literal["measured", "published", "predicted", "guide", "curve", "backdrop", "best", "rings"] = "measured"


@dataclass(frozen=True, slots=True)
class Scale:
    """A chart's horizontal or vertical scale: its caption (with the unit) and how it runs."""

    caption: str
    spacing: Literal["linear", "log2", "log10"] = "linear"
    from_zero: bool = False
    write: Callable[[float], str] | None = None


def lines(chart: Sequence[Line], x: Scale, y: Scale, *, name: str, title: str, description: str) -> Markup:
    """A line chart, each line labelled at its end. Points that can't stand on the scale are left out."""
    drawn = [line for line in (_drawable(line, x, y) for line in chart) if line.x]
    labels = [clean(line.label, 18) for line in drawn]
    last = max((line.x[-1] for line in drawn), default=1.0)
    ends = [len(text) for text, line in zip(labels, drawn, strict=True) if line.x[-1] == last]
    right = 16 + LETTER * max(ends, default=0)
    with style():
        figure, axes = canvas(WIDTH, HEIGHT, left=46, right=right, bottom=42)
        _scale_x(axes, [value for line in drawn for value in line.x], x)
        _scale_y(axes, [value for line in drawn for value in (*line.y, *line.low, *line.high)], y)
        for line in drawn:
            _draw(axes, line)
        _label_ends(axes, drawn, labels)
        if not drawn:
            axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", style="italic")
            axes.set(xticks=(), yticks=())
        axes.set_xlabel(x.caption, labelpad=6)
        _caption_above(axes, y.caption)
        return inline(figure, name=name, title=title, description=description)


def canvas(
    width: float, height: float, *, left: float, right: float, bottom: float, top: float = 30
) -> tuple[Figure, Axes]:
    """An empty figure with one pair of axes, so many pixels from its edges."""
    figure = new_figure(width, height)
    axes = figure.add_axes(
        (left / width, bottom / height, (width - left - right) / width, (height - top - bottom) / height)
    )
    axes.patch.set_alpha(0)
    for side in ("left", "top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=3, pad=4)
    return figure, axes


def _drawable(line: Line, x: Scale, y: Scale) -> Line:
    """The line without points that are missing, or not positive on a logarithmic scale."""
    low, high = line.low or line.y, line.high or line.y

    def stands(value: float, scale: Scale) -> bool:
        return math.isfinite(value) and (scale.spacing == "linear" or value > 0)

    kept = [
        row
        for row in zip(line.x, line.y, low, high, strict=True)
        if stands(row[0], x) and all(stands(value, y) for value in row[1:])
    ]
    xs, ys, lows, highs = (tuple(column) for column in zip(*kept, strict=True)) if kept else ((), (), (), ())
    whiskers = bool(line.low)
    return replace(line, x=xs, y=ys, low=lows if whiskers else (), high=highs if whiskers else ())


def _draw(axes: Axes, line: Line) -> None:
    colour = COLOURS[line.colour]
    if line.low:
        axes.vlines(line.x, line.low, line.high, color=colour, linewidth=1.4)
    if line.kind == "guide":
        axes.plot(line.x, line.y, color=colour, linewidth=1.0, linestyle=(0, (1.5, 2.5)))
    elif line.kind == "backdrop":
        axes.plot(line.x, line.y, color=colour, linewidth=6.0, alpha=0.35, solid_capstyle="round")
    elif line.kind == "best":
        axes.plot(line.x, line.y, color=colour, marker="o", markersize=10, markerfacecolor="none", markeredgewidth=1.6)
    elif line.kind == "rings":
        axes.plot(line.x, line.y, "o", color=colour, markersize=10, markerfacecolor="none", markeredgewidth=1.6)
    elif line.kind == "predicted":
        axes.plot(
            line.x, line.y, color=colour, linewidth=1.6, linestyle=(0, (7, 3)), marker="D", markersize=5,
            markeredgewidth=0,
        )  # fmt: skip
    elif line.kind == "curve":
        axes.plot(line.x, line.y, color=colour, linewidth=1.6)
    elif line.kind == "published":
        axes.plot(
            line.x, line.y, color=colour, linewidth=1.4, linestyle=(0, (4, 2.5)), marker=line.mark, markersize=5,
            markerfacecolor=COLOURS["paper"], markeredgewidth=1.3,
        )  # fmt: skip
    else:
        axes.plot(line.x, line.y, color=colour, linewidth=2.0, marker="o", markersize=5.5, markeredgewidth=0)


def _scale_x(axes: Axes, values: Sequence[float], scale: Scale) -> None:
    if scale.spacing == "log2":
        axes.set_xscale("log", base=2)
        first = math.floor(math.log2(min(values, default=1)) + 0.01)
        final = math.ceil(math.log2(max(values, default=2)) - 0.01)
        widths = [LETTER * len((scale.write or plain)(2.0**power)) + 8 for power in range(first, final + 1)]
        room = axes.bbox.width
        step = next(step for step in itertools.count(1) if sum(widths[::step]) <= room or step > final - first)
        ticks = [2.0**power for power in range(first, final + 1, step)]
        margin = 0.03 * (final - first) or 0.5
        axes.set_xlim(2.0 ** (first - margin), 2.0 ** (final + margin))
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        low, high = min(values, default=0), max(values, default=1)
        pad = 0.03 * (high - low) or 0.5
        axes.set_xlim(low - pad, high + pad)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: (scale.write or plain)(value)))


def _scale_y(axes: Axes, values: Sequence[float], scale: Scale) -> None:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if scale.spacing == "log10":
        axes.set_yscale("log")
        axes.set_ylim(low / 1.4, high * 1.4)
        wide = math.log10(high / low) > 1.3
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 2.0, 5.0)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        if scale.from_zero:
            axes.set_ylim(min(0.0, low), (high or 1.0) * 1.12)
        else:
            pad = 0.08 * (high - low) or 0.05 * abs(high) or 1.0
            axes.set_ylim(low - pad, high + pad)
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: (scale.write or plain)(value)))
    axes.grid(axis="y", color=COLOURS["rule"], linewidth=0.8)
    axes.tick_params(axis="y", length=0)


def plain(value: float) -> str:
    """A tick: no exponent from a thousandth to a hundred thousand."""
    return f"{round(value, 12):,.10g}" if value == 0 or 1e-3 <= abs(value) < 1e6 else f"{value:.3g}"


def _caption_above(axes: Axes, caption: str) -> None:
    """The y axis' caption, level and above the axis, where it can be read."""
    x, y = axes.figure.transFigure.inverted().transform((1, HEIGHT - 16))
    axes.figure.text(x, y, caption, color=COLOURS["muted"], ha="left", va="center")


def _label_ends(axes: Axes, drawn: Sequence[Line], labels: Sequence[str]) -> None:
    """Names right of the last points, moved apart where they'd touch; above or below that of a line that ends early."""
    paths = [axes.transData.transform(list(zip(line.x, line.y, strict=True))) for line in drawn]
    last = max((path[-1][0] for path in paths), default=0.0)
    ends = []
    for line, text, path in zip(drawn, labels, tuple(paths), strict=True):
        x, y = path[-1]
        if text and x == last:
            ends.append((y, text, line.colour))
        elif text:
            half_width = LETTER * len(text) / 2
            x = max(x, axes.bbox.x0 + half_width + 4)  # right of the scale
            offset = _free(x, y, half_width, paths)
            paths.append(np.array([(x - half_width, y + offset), (x + half_width, y + offset)]))
            _write(axes, x, y + offset, text, line.colour, "center")
    ends.sort()
    for place, (_, text, colour) in zip(_apart([end[0] for end in ends]), ends, strict=True):
        _write(axes, last + 9, place, text, colour, "left")


def _free(x: float, y: float, half_width: float, paths: Sequence[np.ndarray]) -> float:
    """How far above or below (x, y) a name of that width is clear of every line, or as clear as can be."""
    places = np.linspace(x - half_width, x + half_width, 9)
    lines_y = [np.interp(places, path[:, 0], path[:, 1], left=np.nan, right=np.nan) for path in paths]
    taken = np.concatenate([line[np.isfinite(line)] for line in lines_y])

    def clearance(offset: float) -> float:
        return float(np.abs(taken - y - offset).min(initial=np.inf))

    offsets = (12.0, -12.0, 20.0, -20.0, 28.0, -28.0)
    return next((offset for offset in offsets if clearance(offset) >= 10), max(offsets, key=clearance))


def _apart(places: Sequence[float]) -> list[float]:
    """Ascending places moved as little as it takes to stand one line apart.

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


def _write(axes: Axes, x: float, y: float, text: str, colour: str, align: Literal["left", "center"]) -> None:
    place = axes.figure.transFigure.inverted().transform((x, y))
    axes.figure.text(place[0], place[1], text, color=COLOURS[colour], ha=align, va="center_baseline", weight="bold")
