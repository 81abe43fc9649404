"""Picture of a pipeline's step: a row a stage, its tasks in colour, and white where it waits.

Schedules that are compared share the time axis. A task has its micro-batch's number where there is room for it; what is
narrower than a pixel is drawn as the part of its place that it fills (timeline.py).
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

from engine.result.schema.contest import PlayedTask
from reports.plots.canvas import legend
from reports.plots.svg import COLOURS, styled
from reports.plots.timeline import BOTTOM, TOP, fill, frame, title
from reports.text import clean, seconds

ROW, BAR, HEAD, GAP = 20.0, 16.0, 24.0, 14.0
LEFT = 62.0
SEAM = 0.75
"""Pixels between two tasks that follow one another."""
DIGIT = 5.6
"""Width of a digit of a task's number in pixels."""
MOST_STAGES = 16
"""Most stages that are drawn; of more, that many, evenly spaced."""
KINDS = {"F": ("forward", "blue"), "B": ("backward", "green"), "W": ("weight gradients", "gold")}


@dataclass(frozen=True, slots=True)
class Schedule:
    """One step under one schedule."""

    label: str
    remark: str
    step_s: float
    stages: tuple[tuple[PlayedTask, ...], ...]
    """Tasks of each stage."""


def drawable(schedules: Sequence[Schedule]) -> list[Schedule]:
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
def picture(schedules: Sequence[Schedule]) -> Figure | None:
    """Draw the steps one below the other on one time axis; None where none can be drawn."""
    steps = drawable(schedules)
    if not steps:
        return None
    counts = [len(schedule.stages) for schedule in steps]
    rows = [np.linspace(0, count - 1, min(count, MOST_STAGES)).round().astype(int) for count in counts]
    tall = [HEAD + ROW * len(shown) for shown in rows]
    height = TOP + sum(tall) + GAP * (len(steps) - 1) + BOTTOM
    figure, axes = frame(height, LEFT, max(schedule.step_s for schedule in steps))
    ticks: list[tuple[float, str]] = []
    place = 0.0
    for schedule, shown, high in zip(steps, rows, tall, strict=True):
        ticks += _draw_step(axes, place, schedule, shown)
        place += high + GAP
    axes.set_yticks(*zip(*ticks, strict=True))
    letters = {name[0] for schedule in steps for tasks in schedule.stages for name, *_ in tasks}
    named = [(f"■ {words}", colour) for kind, (words, colour) in KINDS.items() if kind in letters]
    legend(figure, [*named, ("□ waiting, or none of these", "muted")])
    return figure


def _draw_step(axes: Axes, top: float, schedule: Schedule, shown: Iterable[int]) -> list[tuple[float, str]]:
    """Draw one step from that many pixels down; returns the place and the name of each row."""
    title(axes, top + HEAD / 2, schedule.label, schedule.remark)
    pixel = axes.get_xlim()[1] / axes.bbox.width
    ticks = []
    low = top + HEAD + (ROW - BAR) / 2
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
    axes.vlines(schedule.step_s, top + HEAD, low - (ROW - BAR) / 2, color=COLOURS["ink"], linewidth=1.4)
    return ticks


def _write_numbers(axes: Axes, tasks: Sequence[PlayedTask], middle: float, pixel: float) -> None:
    """Write in each task its micro-batch's number, and a dash for each chunk before its own, where there is room."""
    looks: dict[str, Any] = {"color": COLOURS["paper"], "size": 9, "ha": "center", "va": "center_baseline"}
    for name, start_s, end_s in tasks:
        number, _, chunk = name[1:].partition(".")
        words = number + "\u2032" * min(int(chunk or 0), 3)
        if end_s - start_s > (DIGIT * len(number) + 2.5 * (len(words) - len(number)) + 3) * pixel:
            axes.text((start_s + end_s) / 2, middle, words, **looks)


def tasks(schedules: Sequence[Schedule]) -> pd.DataFrame:
    """List what is drawn, and the stages that aren't."""
    rows = [
        (schedule.label, stage, *task)
        for schedule in drawable(schedules)
        for stage, of_stage in enumerate(schedule.stages)
        for task in of_stage
    ]
    return pd.DataFrame(rows, columns=["schedule", "stage", "task", "start_s", "end_s"])


def describe(schedules: Sequence[Schedule]) -> str:
    """Describe the picture in words."""
    sentences = []
    for schedule in drawable(schedules):
        busy = [sum(end_s - start_s for _, start_s, end_s in tasks) / schedule.step_s for tasks in schedule.stages]
        parts = ", ".join(f"stage {stage} {100 * share:.0f} %" for stage, share in list(enumerate(busy))[:MOST_STAGES])
        sentences.append(f"{clean(schedule.label, 60)}: {seconds(schedule.step_s)}, of which tasks take on {parts}")
    return ". ".join(sentences) + "."
