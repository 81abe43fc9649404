"""The pictures of one setting in the study of pipelines: how long stages wait, and a step of all stages."""

import math

from reports import text
from reports.page import Figure
from reports.plots.canvas import WIDE
from reports.plots.rows import Bars, Row, stacked
from reports.plots.stages import MOST_STAGES, Schedule, describe, picture, tasks
from reports.schedules import Compared


def idle(name: str, one: Compared) -> Figure:
    """Draw the idle share of each schedule, measured and simulated."""
    table = one.table
    rows = [
        Row(
            row["label"], 100 * row["idle_least"], 100 * row["idle_most"], 100 * row["simulated_idle"],
            notes=(text.seconds(row["time_s"]), text.ratio(row["ratio"]) if row["ratio"] == row["ratio"] else ""),
            pale=() if row["ratio_low"] > 1 or row["ratio_high"] < 1 else (1,),
        )
        for _, row in table.iterrows()
    ]  # fmt: skip
    bars = [Bars("idle, mean of the stages", (100 * table["idle"]).tolist(), "sky")]
    drawing = stacked(
        bars, rows, "percent of a step", columns=["step", "by that\nof 1f1b"], mark="simulated", width=WIDE
    )
    caption = (
        "Medians over jobs. Whiskers go from the stage that waits least to the one that waits most. The simulation has "
        "each stage's measured mean times, and messages that take none. A ratio in grey may be chance."
    )
    said = [
        f"{row['label']}: {text.percent(row['idle'])} idle, {text.percent(row['simulated_idle'])} simulated"
        for _, row in table.iterrows()
    ]
    csv = table[["schedule", "time_s", "ratio", "idle", "idle_least", "idle_most", "simulated_idle"]]
    return Figure("Idle share by schedule", caption, drawing, csv, f"{name}-idle", f"{'. '.join(said)}. {caption}")


def timeline(name: str, one: Compared) -> list[Figure]:
    """Draw a step of each schedule that has its tasks, of the newest job; nothing where none has."""
    steps = []
    for schedule, records in zip(one.table["label"], one.records, strict=True):
        newest = records[-1]
        step_s = math.nan if newest.drawn_s is None else newest.drawn_s
        remark = f"{text.seconds(step_s)}, {text.percent(newest.idle_share)} idle on average"
        steps.append(Schedule(schedule, remark, step_s, tuple(stage.tasks for stage in newest.stages)))
    drawing = picture(steps)
    if drawing is None:
        return []
    caption = (
        "The step with the median time of each, in the newest job, on the first rank of every stage. A task has its "
        "micro-batch's number, with a dash where it is of a stage's second part of the network. Stages begin a step "
        "together; it ends at the upright line, after the optimizer."
    )
    if one.stages > MOST_STAGES:
        caption += f" {MOST_STAGES} of {one.stages} stages are drawn."
    return [Figure("One step of all stages", caption, drawing, tasks(steps), f"{name}-timeline", describe(steps))]
