"""One training step drawn as a picture: compute on top, a lane for each kind of communication below (par4d Fig. 4).

Colour says whether communication is in flight behind compute, or while compute stands still. Steps that are compared
share the time axis. What is narrower than a pixel is drawn as the part of its place that it fills, so a picture of a
thousand collectives is no larger and no less true than one of ten.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from engine.grid import Axis
from engine.measure.intervals import Interval, common, union
from engine.result.step import Span, Timeline
from reports.plots.canvas import LETTER, WIDE, canvas, format_ticks, legend, rule
from reports.plots.svg import COLOURS, styled
from reports.text import clean, percent, seconds

LANE, COMPUTE_LANE, PANEL_HEAD, PHASE_HEAD, GAP = 17.0, 26.0, 24.0, 18.0, 16.0
TOP, BOTTOM, RIGHT = 28.0, 40.0, 16.0
BIN = 2.0  # pixels, the width of a place that narrow spans share
SHADES = 6  # levels that such a place can be filled to
MOST_LANES = 14
COMPUTE = "compute"
_AXES = tuple(Axis)

Strip = tuple[float, float, float]
"""A strip has a start, an end, and the part of the lane's height that is filled."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One step and what it is called."""

    label: str
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """A step sorted for drawing, all intervals ascending and apart. lanes: collectives by lane."""

    length: float
    phases: tuple[Span, ...]
    waits: tuple[Interval, ...]
    lanes: dict[str, tuple[Interval, ...]]

    @property
    def waiting(self) -> float:
        """Return the part of the step in which compute stands still."""
        return sum(end - start for start, end in self.waits) / self.length


def sort(timeline: Timeline) -> DrawnStep | None:
    """Return the step without what can't be drawn; None where its length is no positive number."""
    length = timeline.step_s
    if not (math.isfinite(length) and length > 0):
        return None
    spans = [s for s in timeline.spans if math.isfinite(s.start_s) and math.isfinite(s.end_s) and s.end_s > s.start_s]
    spans = [span for span in spans if span.start_s < length and span.end_s > 0]
    lanes: dict[str, list[Interval]] = {}
    for span in spans:
        if span.kind == "collective":
            lanes.setdefault(clean(span.lane, 16), []).append((max(0.0, span.start_s), min(length, span.end_s)))
    phases = tuple(sorted((span for span in spans if span.kind == "phase"), key=lambda span: span.start_s))
    waits = [(max(0.0, span.start_s), min(length, span.end_s)) for span in spans if span.kind == "wait"]
    return DrawnStep(length, phases, union(waits), {lane: union(busy) for lane, busy in lanes.items()})


def strips(intervals: Sequence[Interval], pixels_per_s: float) -> list[Strip]:
    """Say what to draw of intervals, in pixels: wide ones as they are, narrow ones as the part of a place they fill."""
    drawn: list[Strip] = []
    filled: dict[int, float] = {}
    for start, end in intervals:
        low, high = start * pixels_per_s, end * pixels_per_s
        if high - low >= 1:
            drawn.append((low, high, 1.0))
        else:
            place = int((low + high) / 2 / BIN)
            filled[place] = filled.get(place, 0.0) + (high - low) / BIN
    shares = {place: min(1.0, math.ceil(share * SHADES) / SHADES) for place, share in filled.items()}
    for place in sorted(shares):
        low = place * BIN
        if drawn and drawn[-1][1] == low and drawn[-1][2] == shares[place]:
            drawn[-1] = (drawn[-1][0], low + BIN, shares[place])
        else:
            drawn.append((low, low + BIN, shares[place]))
    return drawn


@styled
def picture(panels: Sequence[Panel]) -> Figure | None:
    """Draw the steps one below the other on one time axis; None where none can be drawn."""
    steps = drawable(panels)
    if not steps:
        return None
    lanes = _lanes([step for _, step in steps])
    left = 16 + LETTER * max(len(lane) for lane in (COMPUTE, *lanes))
    tall = PANEL_HEAD + PHASE_HEAD + COMPUTE_LANE + LANE * len(lanes)
    height = TOP + len(steps) * tall + (len(steps) - 1) * GAP + BOTTOM
    longest = max(step.length for _, step in steps)
    first = steps[0][1].length
    figure, axes = canvas(WIDE, height, left=left, right=RIGHT, top=TOP, bottom=BOTTOM)
    axes.set_xlim(0, longest)
    axes.set_ylim(height - TOP - BOTTOM, 0)
    scale = (WIDE - left - RIGHT) / longest
    ticks: list[tuple[float, str]] = []
    for number, (panel, step) in enumerate(steps):
        place = number * (tall + GAP)
        ticks += _draw_step(axes, place, panel.label, step, lanes, scale)
        if step.length < first:
            _draw_saved(axes, place, tall, step.length, first, scale)
    axes.set_yticks([place for place, _ in ticks], [words for _, words in ticks])
    axes.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
    axes.xaxis.set_major_locator(MaxNLocator(8))
    format_ticks(axes.xaxis)
    rule(axes, "x")
    axes.set_xlabel("seconds from the start of the step", labelpad=6)
    waits = ("■ compute waits, and what is in flight then", "red")
    legend(figure, [("■ compute", "blue"), waits, ("■ in flight behind compute", "green")])
    return figure


def drawable(panels: Sequence[Panel]) -> list[tuple[Panel, DrawnStep]]:
    return [(panel, step) for panel in panels if (step := sort(panel.timeline))]


def spans(timeline: Timeline) -> pd.DataFrame:
    keys = ["lane", "kind", "name", "start_s", "end_s"]
    table = pd.DataFrame([span.model_dump(include=set(keys)) for span in timeline.spans], columns=keys)
    return table.assign(lane=table["lane"].map(clean), name=table["name"].map(clean))


def describe(panels: Sequence[Panel]) -> str:
    said = []
    for panel, step in drawable(panels):
        lanes = [
            f"{lane} busy for {seconds(sum(end - start for start, end in step.lanes[lane]))}"
            for lane in _lanes([step])
            if lane in step.lanes
        ]
        words = f"{clean(panel.label, 60)}: {seconds(step.length)}, compute waits for {percent(step.waiting)} of it"
        said.append("; ".join([words, *lanes]))
    return ". ".join(said) + "."


def _lanes(steps: Sequence[DrawnStep]) -> list[str]:
    """Return the lanes of communication that any step has, by the grid's axes."""
    names = {lane for step in steps for lane in step.lanes}

    def place(lane: str) -> tuple[int, str]:
        axis = lane.split(" ")[0]
        return (_AXES.index(axis) if axis in _AXES else len(_AXES), lane)

    return sorted(names, key=place)[:MOST_LANES]


def _draw_step(
    axes: Axes, top: float, label: str, step: DrawnStep, lanes: Sequence[str], scale: float
) -> list[tuple[float, str]]:
    """Draw one step from so many pixels from the top down; returns the place and the name of each lane."""
    head = top + PANEL_HEAD / 2
    axes.text(0, head, clean(label, 60), weight="bold", va="center")
    said = f"{seconds(step.length)}, waiting for {percent(step.waiting)} of it"
    axes.text((LETTER * len(clean(label, 60)) + 16) / scale, head, said, color=COLOURS["muted"], va="center")
    base = top + PANEL_HEAD + PHASE_HEAD
    _draw_phases(axes, base, step, scale)
    computing = common([(0.0, step.length)], [(phase.start_s, phase.end_s) for phase in step.phases])
    fill(axes, strips(union(computing or [(0.0, step.length)]), scale), base, COMPUTE_LANE, "blue", scale)
    fill(axes, strips(step.waits, scale), base, COMPUTE_LANE, "red", scale)
    ticks = [(base + COMPUTE_LANE / 2, COMPUTE)]
    for number, lane in enumerate(lanes):
        low = base + COMPUTE_LANE + LANE * number
        busy = step.lanes.get(lane, ())
        fill(axes, strips(busy, scale), low + 3, LANE - 5, "green", scale)
        fill(axes, strips(common(busy, step.waits), scale), low + 3, LANE - 5, "red", scale)
        ticks.append((low + LANE / 2, lane))
    return ticks


def _draw_saved(axes: Axes, top: float, tall: float, end: float, first: float, scale: float) -> None:
    """Mark where a step ends that is shorter than the first, and by how much."""
    axes.vlines(end, top + PANEL_HEAD, top + tall, color=COLOURS["ink"], linewidth=1.0)
    words = f"{seconds(first - end)} saved"
    if (first - end) * scale > LETTER * len(words) + 16:
        place = top + PANEL_HEAD + PHASE_HEAD + COMPUTE_LANE / 2
        axes.text(end + 8 / scale, place, words, weight="bold", va="center")


def _draw_phases(axes: Axes, base: float, step: DrawnStep, scale: float) -> None:
    """Draw a rule over each phase, with its name where there is room."""
    for phase in step.phases:
        low, high = max(0.0, phase.start_s), min(step.length, phase.end_s)
        name = clean(phase.name, 20)
        axes.hlines(base - 3, low, high - min(1.5 / scale, (high - low) / 2), color=COLOURS["muted"], linewidth=1.5)
        if (high - low) * scale > LETTER * len(name) + 4:
            axes.text(low, base - 11, name, color=COLOURS["muted"], va="center")


def fill(axes: Axes, drawn: Sequence[Strip], top: float, height: float, colour: str, scale: float) -> None:
    """Draw all strips of one lane as one shape, standing on the lane's lower edge."""
    if not drawn:
        return
    bottom = top + height
    corners = np.array(
        [
            (x / scale, y)
            for low, high, share in drawn
            for x, y in (
                *((low, bottom), (high, bottom), (high, bottom - share * height), (low, bottom - share * height)),
                (low, bottom),
            )
        ]
    )
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(drawn)
    axes.add_patch(PathPatch(Path(corners, codes), facecolor=COLOURS[colour], linewidth=0))
