"""Published values with their tolerances and measured intervals with their verdicts, on one scale a unit.

Each target has a line for what it is and what is published, and below it one for each machine: its name, the measured
value with its interval, and the verdict by a sign, a word and a colour. It is drawn for a narrow page, where a label
has no room beside its row, and is as wide on a wide one.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from reports.plots.canvas import LETTER, canvas, fitted, format_ticks, legend, rule, width_of, write
from reports.plots.svg import COLOURS, styled

WIDTH, LEFT, RIGHT = 400.0, 84.0, 132.0
TITLE, LINE, GAP, BELOW, TOP = 19.0, 18.0, 8.0, 46.0, 30.0
"""Heights: of the line that says what a target is, of a machine's line, of what is left free, of a scale's caption."""
BEYOND = 0.6
"""Part of the width of all values by which an interval may widen the scale; what is beyond ends in an arrow."""
MANY_TIMES = 30.0
"""Ratio of the greatest to the least value from which a scale is logarithmic."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Measurement of a target on one machine, or that there is none."""

    machine: str
    verdict: str
    """Words that end the line, with a sign in front."""
    colour: str
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    hollow: bool = False
    """Whether only the side on which it lies counts."""


@dataclass(frozen=True, slots=True)
class Track:
    """Target: what is published of it, and what was measured."""

    label: str
    said: str
    """Published value in words."""
    spots: Sequence[Spot]
    published: Sequence[tuple[float, float]] = ()
    """Ends of each published value; the first is the one that it is judged by."""
    low: float = math.nan
    """Ends of the values that reproduce it, infinite where they have none."""
    high: float = math.nan


@dataclass(frozen=True, slots=True)
class Panel:
    """Targets on one scale."""

    caption: str
    tracks: Sequence[Track]
    level: float = math.nan
    """Value at which nobody is ahead."""


@styled
def verdicts(panels: Sequence[Panel]) -> Figure:
    """Draw the panels below each other, each with its scale."""
    heights = [_tall(panel) for panel in panels]
    whole = TOP + sum(heights) + BELOW * len(panels)
    figure, first = canvas(WIDTH, whole, left=LEFT, right=RIGHT, bottom=0, top=0)
    first.remove()
    top = TOP
    for panel, tall in zip(panels, heights, strict=True):
        axes = figure.add_axes((LEFT / WIDTH, 1 - (top + tall) / whole, (WIDTH - LEFT - RIGHT) / WIDTH, tall / whole))
        _prepare(axes, tall)
        _scale(axes, panel)
        _draw(figure, axes, panel, top)
        top += tall + BELOW
    measured = [spot for panel in panels for track in panel.tracks for spot in track.spots if math.isfinite(spot.value)]
    entries = [("◆ published", "ink"), ("■ tolerance", "sky")]
    entries += [("● measured", "muted")] if measured else []
    entries += [("○ by sign", "muted")] if any(spot.hollow for spot in measured) else []
    legend(figure, entries)
    return figure


def _tall(panel: Panel) -> float:
    return sum(TITLE + LINE * len(track.spots) + GAP for track in panel.tracks)


def _prepare(axes: Axes, tall: float) -> None:
    axes.patch.set_alpha(0)
    axes.spines[["left", "top", "right"]].set_visible(False)
    axes.set_ylim(tall, 0)
    axes.yaxis.set_major_locator(NullLocator())
    axes.tick_params(length=3, pad=4)


def _scale(axes: Axes, panel: Panel) -> None:
    """Set the ends of the scale: all published and measured values, and of intervals what doesn't squeeze them."""
    spots = [spot for track in panel.tracks for spot in track.spots]
    published = [end for track in panel.tracks for ends in track.published for end in ends]
    tolerated = [end for track in panel.tracks for end in (track.low, track.high)]
    places = [*(spot.value for spot in spots), *published, *tolerated, panel.level]
    values = [value for value in places if math.isfinite(value)]
    least, most = min(values, default=0.0), max(values, default=1.0)
    axes.set_xlabel(panel.caption, labelpad=4)
    if least > 0 and most > MANY_TIMES * least:
        axes.set_xscale("log")
        axes.set_xlim(least / 1.6, most * 1.6)
        axes.xaxis.set_major_locator(LogLocator(numticks=6))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        room = BEYOND * ((most - least) or abs(most) or 1.0)
        ends = [end for spot in spots for end in (spot.low, spot.high) if math.isfinite(end)]
        low, high = max(least - room, min([least, *ends])), min(most + room, max([most, *ends]))
        edge = 0.06 * ((high - low) or abs(high) or 1.0)
        axes.set_xlim(low - edge, high + edge)
        axes.xaxis.set_major_locator(MaxNLocator(4) if high > low else FixedLocator([low]))
    format_ticks(axes.xaxis)
    rule(axes, "x")


def _draw(figure: Figure, axes: Axes, panel: Panel, top: float) -> None:
    if math.isfinite(panel.level):
        axes.axvline(panel.level, color=COLOURS["ink"], linewidth=1.2)
    starts = itertools.accumulate((TITLE + LINE * len(track.spots) + GAP for track in panel.tracks), initial=0.0)
    for track, start in zip(panel.tracks, starts, strict=False):
        letters = int((WIDTH - 16) / LETTER)
        said = fitted(track.said, letters - 12)
        label = fitted(track.label, letters - 2 - int(width_of(said) / LETTER))
        write(figure, 4, top + start + TITLE / 2, label, "ink", "left", weight="bold")
        write(figure, WIDTH - 4, top + start + TITLE / 2, said, "muted", "right")
        _published(axes, track, start + TITLE, start + TITLE + LINE * len(track.spots))
        for place, spot in enumerate(track.spots):
            middle = start + TITLE + LINE * (place + 0.5)
            _measured(axes, spot, middle)
            write(figure, 4, top + middle, fitted(spot.machine, 11), "ink", "left")
            write(figure, WIDTH - RIGHT + 10, top + middle, fitted(spot.verdict, 18), spot.colour, "left", "bold")


def _published(axes: Axes, track: Track, above: float, below: float) -> None:
    """Draw the tolerance behind all machines' lines, and each published value across them."""
    left, right = axes.get_xlim()
    if not math.isnan(track.low):
        low, high = max(track.low, left), min(track.high, right)
        axes.fill_betweenx([above, below], low, high, color=COLOURS["sky"], alpha=0.22, linewidth=0)
    for place, (low, high) in enumerate(track.published):
        face = COLOURS["ink"] if place == 0 else COLOURS["paper"]
        middle = (above + below) / 2
        style = "solid" if place == 0 else (0, (2, 2))
        for end in dict.fromkeys((low, high)):
            axes.vlines(end, above, below, color=COLOURS["ink"], linewidth=1.0, linestyle=style)
            axes.plot(end, middle, marker="D", markersize=6, mfc=face, mec=COLOURS["ink"], zorder=3)


def _measured(axes: Axes, spot: Spot, y: float) -> None:
    if not math.isfinite(spot.value):
        return
    left, right = axes.get_xlim()
    colour = COLOURS[spot.colour]
    if not math.isnan(spot.low):
        low, high = max(spot.low, left), min(spot.high, right)
        axes.hlines(y, low, high, color=colour, linewidth=1.8, zorder=4)
        for end, cut, arrow in ((low, spot.low < left, "<"), (high, spot.high > right, ">")):
            axes.plot(end, y, marker=arrow if cut else "|", markersize=7, color=colour, zorder=4, clip_on=False)
    face = COLOURS["paper"] if spot.hollow else colour
    axes.plot(spot.value, y, marker="o", markersize=7, mfc=face, mec=colour, mew=1.6, zorder=5)
