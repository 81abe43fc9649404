"""Pictures of training steps over one time axis: compute above lanes of communication (par4d Fig. 4), or a pipeline's
stages with a task's micro-batch where there is room.

Colour says whether communication is in flight behind compute, or while compute stands still. What is narrower than a
pixel is drawn as the part of its place that it fills, so a picture of a thousand collectives is no larger and no less
true than one of ten.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from engine.grid import Axis
from engine.measure.intervals import Interval, common, union
from engine.result.schema.contest import PlayedTask
from engine.result.schema.step import Span, Timeline
from reports.plots.canvas import LETTER, WIDE, canvas, format_ticks, legend, rule
from reports.plots.svg import COLOURS, styled
from reports.text import clean, percent, seconds

LANE, COMPUTE_LANE, PANEL_HEAD, PHASE_HEAD, GAP = 17.0, 26.0, 24.0, 18.0, 16.0
TOP, BOTTOM, RIGHT = 28.0, 40.0, 16.0
BIN = 2.0
"""Width in pixels of a place that spans narrower than a pixel share."""
SHADES = 6
"""Levels that such a place can be filled to."""
MOST_LANES = 14
COMPUTE = "compute"
_AXES = tuple(Axis)
ROW, BAR, STAGES_LEFT = 20.0, 16.0, 62.0
SEAM = 0.75
"""Pixels between two tasks that follow one another."""
DIGIT = 5.6
"""Width of a digit of a task's number in pixels."""
MOST_STAGES = 16
"""Most stages that are drawn; of more, that many, evenly spaced."""
KINDS = {"F": ("forward", "blue"), "B": ("backward", "green"), "W": ("weight gradients", "gold")}


@dataclass(frozen=True, slots=True)
class Panel:
    """One step and its name."""

    label: str
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """Step sorted for drawing, all intervals ascending and apart."""

    length: float
    phases: tuple[Span, ...]
    waits: tuple[Interval, ...]
    lanes: dict[str, tuple[Interval, ...]]
    """Collectives by lane."""

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


def fill(axes: Axes, intervals: Sequence[Interval], top: float, height: float, colour: str) -> None:
    """Draw intervals of one lane: wide ones as they are, narrow ones as the part of a place that they fill."""
    pixel = axes.get_xlim()[1] / axes.bbox.width
    wide = [(start, end - start) for start, end in intervals if end - start >= pixel]
    axes.broken_barh(wide, (top, height), facecolors=COLOURS[colour], linewidth=0, clip_on=False)
    edges = np.arange(axes.bbox.width // BIN + 2) * BIN * pixel
    narrow = np.array([(start, end) for start, end in intervals if end - start < pixel]).reshape(-1, 2)
    filled, _ = np.histogram(narrow.mean(axis=1), edges, weights=narrow[:, 1] - narrow[:, 0])
    shares = np.minimum(np.ceil(filled / (BIN * pixel) * SHADES) / SHADES, 1.0)
    ends = np.flatnonzero(np.diff(shares, append=-1.0))
    levels, borders = shares[ends], np.concatenate([edges[:1], edges[ends + 1]])
    if levels.any():
        bottom = top + height
        axes.stairs(bottom - height * levels, borders, baseline=bottom, fill=True, color=COLOURS[colour], linewidth=0)


def frame(height: float, left: float, longest_s: float) -> tuple[Figure, Axes]:
    """Return a wide figure for lanes from the top down, in pixels, over one time axis."""
    figure, axes = canvas(WIDE, height, left=left, right=RIGHT, top=TOP, bottom=BOTTOM)
    axes.set(xlim=(0, longest_s), ylim=(height - TOP - BOTTOM, 0))
    axes.tick_params(axis="y", length=0, labelcolor=COLOURS["ink"])
    axes.xaxis.set_major_locator(MaxNLocator(8))
    format_ticks(axes.xaxis)
    rule(axes, "x")
    axes.set_xlabel("seconds from the start of the step", labelpad=6)
    return figure, axes


def title(axes: Axes, y: float, label: str, remark: str) -> None:
    """Write the name of a step above it, and a remark."""
    words = clean(label, 60)
    axes.text(0, y, words, weight="bold", va="center")
    place = (LETTER * len(words) + 16, 0)
    axes.annotate(remark, (0, y), place, textcoords="offset points", va="center", color=COLOURS["muted"])


@styled
def draw_steps(panels: Sequence[Panel]) -> Figure | None:
    """Draw the steps one below the other on one time axis; None where none can be drawn."""
    steps = drawable_steps(panels)
    if not steps:
        return None
    lanes = _lanes([step for _, step in steps])
    left = 16 + LETTER * max(len(lane) for lane in (COMPUTE, *lanes))
    tall = PANEL_HEAD + PHASE_HEAD + COMPUTE_LANE + LANE * len(lanes)
    height = TOP + len(steps) * tall + (len(steps) - 1) * GAP + BOTTOM
    first = steps[0][1].length
    figure, axes = frame(height, left, max(step.length for _, step in steps))
    ticks: list[tuple[float, str]] = []
    for number, (panel, step) in enumerate(steps):
        place = number * (tall + GAP)
        ticks += _draw_panel(axes, place, panel.label, step, lanes)
        if step.length < first:
            _draw_saved(axes, place, tall, step.length, first)
    axes.set_yticks(*zip(*ticks, strict=True))
    waits = ("■ compute waits, and what is in flight then", "red")
    legend(figure, [("■ compute", "blue"), waits, ("■ in flight behind compute", "green")])
    return figure


def drawable_steps(panels: Sequence[Panel]) -> list[tuple[Panel, DrawnStep]]:
    return [(panel, step) for panel in panels if (step := sort(panel.timeline))]


def list_spans(timeline: Timeline) -> pd.DataFrame:
    """List the spans of a step."""
    keys = ["lane", "kind", "name", "start_s", "end_s"]
    table = pd.DataFrame([span.model_dump(include=set(keys)) for span in timeline.spans], columns=keys)
    return table.assign(lane=table["lane"].map(clean), name=table["name"].map(clean))


def describe_steps(panels: Sequence[Panel]) -> str:
    """Describe the picture in words."""
    sentences = []
    for panel, step in drawable_steps(panels):
        lanes = [
            f"{lane} busy for {seconds(sum(end - start for start, end in step.lanes[lane]))}"
            for lane in _lanes([step])
            if lane in step.lanes
        ]
        words = f"{clean(panel.label, 60)}: {seconds(step.length)}, compute waits for {percent(step.waiting)} of it"
        sentences.append("; ".join([words, *lanes]))
    return ". ".join(sentences) + "."


def _lanes(steps: Sequence[DrawnStep]) -> list[str]:
    """Return the lanes of communication that any step has, by the grid's axes."""
    names = {lane for step in steps for lane in step.lanes}

    def place(lane: str) -> tuple[int, str]:
        axis = lane.split(" ")[0]
        return (_AXES.index(axis) if axis in _AXES else len(_AXES), lane)

    return sorted(names, key=place)[:MOST_LANES]


def _draw_panel(axes: Axes, top: float, label: str, step: DrawnStep, lanes: Sequence[str]) -> list[tuple[float, str]]:
    """Draw one step from that many pixels down; returns the place and the name of each lane."""
    title(axes, top + PANEL_HEAD / 2, label, f"{seconds(step.length)}, waiting for {percent(step.waiting)} of it")
    base = top + PANEL_HEAD + PHASE_HEAD
    _draw_phases(axes, base, step)
    computing = common([(0.0, step.length)], [(phase.start_s, phase.end_s) for phase in step.phases])
    fill(axes, union(computing or [(0.0, step.length)]), base, COMPUTE_LANE, "blue")
    fill(axes, step.waits, base, COMPUTE_LANE, "red")
    ticks = [(base + COMPUTE_LANE / 2, COMPUTE)]
    for number, lane in enumerate(lanes):
        low = base + COMPUTE_LANE + LANE * number
        busy = step.lanes.get(lane, ())
        fill(axes, busy, low + 3, LANE - 5, "green")
        fill(axes, common(busy, step.waits), low + 3, LANE - 5, "red")
        ticks.append((low + LANE / 2, lane))
    return ticks


def _draw_saved(axes: Axes, top: float, tall: float, end: float, first: float) -> None:
    """Mark the end of a step that is shorter than the first, and by how much."""
    axes.vlines(end, top + PANEL_HEAD, top + tall, color=COLOURS["ink"], linewidth=1.0)
    words = f"{seconds(first - end)} saved"
    pixel = axes.get_xlim()[1] / axes.bbox.width
    if first - end > (LETTER * len(words) + 16) * pixel:
        place = top + PANEL_HEAD + PHASE_HEAD + COMPUTE_LANE / 2
        axes.text(end + 8 * pixel, place, words, weight="bold", va="center")


def _draw_phases(axes: Axes, base: float, step: DrawnStep) -> None:
    """Draw a rule over each phase, with its name where there is room."""
    pixel = axes.get_xlim()[1] / axes.bbox.width
    for phase in step.phases:
        low, high = max(0.0, phase.start_s), min(step.length, phase.end_s)
        name = clean(phase.name, 20)
        axes.hlines(base - 3, low, high - min(1.5 * pixel, (high - low) / 2), color=COLOURS["muted"], linewidth=1.5)
        if high - low > (LETTER * len(name) + 4) * pixel:
            axes.text(low, base - 11, name, color=COLOURS["muted"], va="center")


@dataclass(frozen=True, slots=True)
class DrawnSchedule:
    """One step under one schedule."""

    label: str
    remark: str
    step_s: float
    stages: tuple[tuple[PlayedTask, ...], ...]
    """Tasks of each stage."""


def drawable_schedules(schedules: Sequence[DrawnSchedule]) -> list[DrawnSchedule]:
    """Leave out those whose step has no length, and tasks that can't be drawn."""
    kept = []
    for schedule in schedules:
        stages = tuple(tuple(task for task in tasks if _fits(task, schedule.step_s)) for tasks in schedule.stages)
        if math.isfinite(schedule.step_s) and any(stages):
            kept.append(replace(schedule, stages=stages))
    return kept


def _fits(task: PlayedTask, step_s: float) -> bool:
    name, start_s, end_s = task
    return bool(re.fullmatch(r"[FBW]\d{1,6}(\.\d{1,3})?", name)) and 0 <= start_s < end_s <= step_s


@styled
def draw_schedules(schedules: Sequence[DrawnSchedule]) -> Figure | None:
    """Draw the steps one below the other on one time axis; None where none can be drawn."""
    steps = drawable_schedules(schedules)
    if not steps:
        return None
    counts = [len(schedule.stages) for schedule in steps]
    rows = [np.linspace(0, count - 1, min(count, MOST_STAGES)).round().astype(int) for count in counts]
    tall = [PANEL_HEAD + ROW * len(shown) for shown in rows]
    height = TOP + sum(tall) + GAP * (len(steps) - 1) + BOTTOM
    figure, axes = frame(height, STAGES_LEFT, max(schedule.step_s for schedule in steps))
    ticks: list[tuple[float, str]] = []
    place = 0.0
    for schedule, shown, high in zip(steps, rows, tall, strict=True):
        ticks += _draw_schedule(axes, place, schedule, shown)
        place += high + GAP
    axes.set_yticks(*zip(*ticks, strict=True))
    letters = {name[0] for schedule in steps for tasks in schedule.stages for name, *_ in tasks}
    named = [(f"■ {words}", colour) for kind, (words, colour) in KINDS.items() if kind in letters]
    legend(figure, [*named, ("□ waiting, or none of these", "muted")])
    return figure


def _draw_schedule(axes: Axes, top: float, schedule: DrawnSchedule, shown: Iterable[int]) -> list[tuple[float, str]]:
    """Draw one step from that many pixels down; returns the place and the name of each row."""
    title(axes, top + PANEL_HEAD / 2, schedule.label, schedule.remark)
    pixel = axes.get_xlim()[1] / axes.bbox.width
    ticks = []
    low = top + PANEL_HEAD + (ROW - BAR) / 2
    for stage in shown:
        for kind, (_, colour) in KINDS.items():
            spans = [
                (start_s, max((start_s + end_s) / 2, end_s - SEAM * pixel))
                for name, start_s, end_s in schedule.stages[stage]
                if name.startswith(kind)
            ]
            fill(axes, spans, low, BAR, colour)
        _write_numbers(axes, schedule.stages[stage], low + BAR / 2, pixel)
        ticks.append((low + BAR / 2, f"stage {stage}"))
        low += ROW
    axes.vlines(schedule.step_s, top + PANEL_HEAD, low - (ROW - BAR) / 2, color=COLOURS["ink"], linewidth=1.4)
    return ticks


def _write_numbers(axes: Axes, tasks: Sequence[PlayedTask], middle: float, pixel: float) -> None:
    """Write in each task its micro-batch's number, and a dash for each chunk before its own, where there is room."""
    looks: dict[str, Any] = {"color": COLOURS["paper"], "size": 9, "ha": "center", "va": "center_baseline"}
    for name, start_s, end_s in tasks:
        number, _, chunk = name[1:].partition(".")
        words = number + "\u2032" * min(int(chunk or 0), 3)
        if end_s - start_s > (DIGIT * len(number) + 2.5 * (len(words) - len(number)) + 3) * pixel:
            axes.text((start_s + end_s) / 2, middle, words, **looks)


def list_tasks(schedules: Sequence[DrawnSchedule]) -> pd.DataFrame:
    """List what is drawn, and the stages that aren't."""
    rows = [
        (schedule.label, stage, *task)
        for schedule in drawable_schedules(schedules)
        for stage, of_stage in enumerate(schedule.stages)
        for task in of_stage
    ]
    return pd.DataFrame(rows, columns=["schedule", "stage", "task", "start_s", "end_s"])


def describe_schedules(schedules: Sequence[DrawnSchedule]) -> str:
    """Describe the picture in words."""
    sentences = []
    for schedule in drawable_schedules(schedules):
        busy = [sum(end_s - start_s for _, start_s, end_s in tasks) / schedule.step_s for tasks in schedule.stages]
        parts = ", ".join(f"stage {stage} {100 * share:.0f} %" for stage, share in list(enumerate(busy))[:MOST_STAGES])
        sentences.append(f"{clean(schedule.label, 60)}: {seconds(schedule.step_s)}, of which tasks take on {parts}")
    return ". ".join(sentences) + "."
