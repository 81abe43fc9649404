"""Dots between two scales, as inline SVG, with what each kind is named above them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from reports.bars import write
from reports.charts import LETTER, WIDTH, Scale, canvas, plain
from reports.svg import COLOURS, inline, style

TOP, LEFT, BOTTOM, RIGHT = 50.0, 50.0, 42.0, 16.0
TALL = 250.0
SQUARE = WIDTH - LEFT - RIGHT + TOP + BOTTOM
"""Height at which both scales are as long."""
DECADE = 4.0
"""Values that span more than so many times the least are drawn on logarithmic scales."""


@dataclass(frozen=True, slots=True)
class Dots:
    """Points of one kind; low and high are whiskers. ringed: open marks."""

    x: Sequence[float]
    y: Sequence[float]
    colour: str
    label: str
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    ringed: bool = False


def scatter(
    groups: Sequence[Dots], x: Scale, y: Scale, *, name: str, title: str, description: str, upright: float = math.nan
) -> Markup:
    """The groups, later ones on top. upright: where a dotted line stands."""
    drawn = _drawable(groups)
    with style():
        figure, axes = canvas(WIDTH, TALL, left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM)
        xs = [value for dots in drawn for value in dots.x]
        if xs:
            axes.set_xlim(min(0.0, *xs), 1.04 * max(xs))
        values = [value for dots in drawn for value in (*dots.y, *dots.low, *dots.high)]
        low, high = min(values, default=0.0), max(values, default=1.0)
        axes.set_ylim(min(0.0, low) if y.from_zero else low - 0.08 * (high - low), (high or 1.0) * 1.08)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        if math.isfinite(upright):
            axes.axvline(upright, color=COLOURS["muted"], linewidth=1.0, linestyle=(0, (1.5, 2.5)))
        _finish(figure, axes, drawn, x, y)
        return inline(figure, name=name, title=title, description=description)


def against(
    groups: Sequence[Dots], x: Scale, y: Scale, *, within: float, name: str, title: str, description: str
) -> Markup:
    """The same on two scales that are one, with the diagonal, and dotted lines so large a part above and below it."""
    drawn = _drawable(groups)
    values = [value for dots in drawn for value in (*dots.x, *dots.y, *dots.low, *dots.high)]
    low, high = min(values, default=0.0), max(values, default=1.0) or 1.0
    with style():
        figure, axes = canvas(WIDTH, SQUARE, left=LEFT, right=RIGHT, top=TOP, bottom=BOTTOM)
        if low > 0 and high > DECADE * low:
            axes.set(xscale="log", yscale="log", xlim=(low / 1.2, high * 1.2), ylim=(low / 1.2, high * 1.2))
            subs = (1.0,) if high > 20 * low else (1.0, 2.0, 5.0)
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(LogLocator(subs=subs))
                axis.set_minor_locator(NullLocator())
        else:
            axes.set(xlim=(0, 1.1 * high), ylim=(0, 1.1 * high))
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.yaxis.set_major_locator(MaxNLocator(5))
        ends = axes.get_xlim()
        for slope in (1.0, 1 + within, 1 - within):
            dashes = "-" if slope == 1 else (0, (1.5, 2.5))
            axes.plot(ends, [slope * end for end in ends], color=COLOURS["muted"], linewidth=1.0, linestyle=dashes)
        _finish(figure, axes, drawn, x, y)
        return inline(figure, name=name, title=title, description=description)


def _drawable(groups: Sequence[Dots]) -> list[Dots]:
    """Without points that are missing; whiskers that are missing have no length."""
    found = []
    for dots in groups:
        low, high = dots.low or dots.y, dots.high or dots.y
        kept = [
            (x, y, start if math.isfinite(start) else y, end if math.isfinite(end) else y)
            for x, y, start, end in zip(dots.x, dots.y, low, high, strict=True)
            if math.isfinite(x) and math.isfinite(y)
        ]
        if kept:
            xs, ys, lows, highs = (tuple(column) for column in zip(*kept, strict=True))
            whiskers = bool(dots.low)
            found.append(replace(dots, x=xs, y=ys, low=lows if whiskers else (), high=highs if whiskers else ()))
    return found


def _finish(figure: Figure, axes: Axes, drawn: Sequence[Dots], x: Scale, y: Scale) -> None:
    """Marks, captions and the names of the groups."""
    for dots in drawn:
        colour = COLOURS[dots.colour]
        if dots.low:
            axes.vlines(dots.x, dots.low, dots.high, color=colour, linewidth=1.2, alpha=0.6)
        axes.plot(
            dots.x, dots.y, linestyle="none", marker="o", markersize=6 if dots.ringed else 5.5, color=colour,
            markerfacecolor=COLOURS["paper"] if dots.ringed else colour, markeredgewidth=1.6 if dots.ringed else 0,
        )  # fmt: skip
    if not drawn:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", style="italic")
        axes.set(xticks=(), yticks=())
    for axis, scale in ((axes.xaxis, x), (axes.yaxis, y)):
        axis.set_major_formatter(FuncFormatter(lambda value, _, scale=scale: (scale.write or plain)(value)))
    axes.grid(axis="y", color=COLOURS["rule"], linewidth=0.8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(x.caption, labelpad=6)
    write(figure, 1.0, 12, y.caption, "muted", "left")
    place = 1.0
    for dots in drawn:
        words = f"{'○' if dots.ringed else '●'} {dots.label}"
        write(figure, place, 30, words, dots.colour, "left", weight="bold")
        place += LETTER * (len(words) + 2)
