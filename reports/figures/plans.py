"""The pictures of a plan: its grids as bars, and the predicted step of one of them."""

from itertools import cycle

import pandas as pd

from engine.planning.document import GridPlan
from reports import text
from reports.frames.predictions import AXES
from reports.page import Figure
from reports.plots.canvas import WIDE
from reports.plots.rows import Bars, Row, stacked
from reports.plots.timeline import Panel, describe_steps, draw_steps, list_spans

MOST_BARS = 20
COMPUTE = "blue"
COLOURS = dict(zip(AXES, cycle(("gold", "red", "green", "purple")), strict=False))
"""Each axis of communication has a colour, beside the blue of compute."""
SIMPLIFIED = "One rank stands for all, and none is late."


def times(name: str, rows: pd.DataFrame) -> Figure:
    """Draw where the predicted time of each grid goes; without a simulation, the equations' communication."""
    simulated = rows.dropna(subset="predicted_s")
    whole = not simulated.empty
    shown = (simulated if whole else rows).head(MOST_BARS)
    prefix = "exposed" if whole else "equations"
    drawn = [axis for axis in AXES if (shown[f"{prefix}_{axis}"] > 0).any()]
    parts = [Bars(f"{axis}", shown[f"{prefix}_{axis}"].tolist(), COLOURS[axis]) for axis in drawn]
    total = "predicted_s" if whole else "equations_s"
    caption = (
        "Predicted, not measured: by the bandwidth of each axis alone. No compute is counted, and nothing is hidden."
    )
    if whole:
        parts.insert(0, Bars("compute", shown["compute_s"].tolist(), COMPUTE))
        caption = (
            "Predicted, not measured. Blue: compute; the other colours: exposed communication, by axis. Whiskers: the "
            f"interval that the time is expected in. {SIMPLIFIED}"
        )
    marked = [Row(row["grid"], row["low_s"], row["high_s"], notes=_notes(row, whole)) for _, row in shown.iterrows()]
    if len(shown) < len(rows):
        caption += f" {len(shown)} of {len(rows)} grids drawn."
    title = "Where the predicted time goes" if whole else "Communication by the equations"
    said = [f"{row['grid']}: {text.seconds(row[total])}" for _, row in shown.iterrows() if row[total] == row[total]]
    drawing = stacked(
        parts,
        marked,
        f"seconds per batch, {'predicted' if whole else 'by the equations'}",
        columns=("step", "exposed", "memory") if whole else ("sum", "memory"),
        width=WIDE,
    )
    keys = ["grid", "predicted_s", "low_s", "high_s", "compute_s", *(f"exposed_{axis}" for axis in AXES)]
    keys += ["equations_s", *(f"equations_{axis}" for axis in AXES)]
    return Figure(title, caption, drawing, shown[keys], f"{name}-times", f"{'. '.join(said)}. {caption}")


def _notes(row: "pd.Series[float]", whole: bool) -> tuple[str, ...]:
    keys = ("predicted_s", "exposed_s") if whole else ("equations_s",)
    times = [text.seconds(row[key]) if row[key] == row[key] else "" for key in keys]
    return (*times, text.memory(row["memory_bytes"]) if row["memory_bytes"] == row["memory_bytes"] else "")


def step(name: str, plan: GridPlan) -> list[Figure]:
    """Draw the predicted step of the first grid that has one, drawn as a measured one is; nothing where none has."""
    row = next((row for row in plan.rows if row.timeline is not None), None)
    if row is None or row.timeline is None:
        return []
    title = "One predicted step"
    panel = Panel(f"predicted, grid {row.grid}", row.timeline)
    drawing = draw_steps([panel])
    if drawing is None:
        return []
    few = text.number(row.timeline_layers)
    layers = "" if row.exact or not few > 0 else f", with {few:,.0f} of its layers,"
    caption = (
        f"Predicted, not measured: the step of number {row.place}{layers} as the engine issues it, played on a model "
        f"of the machine. {SIMPLIFIED} Compute and its phases on top, below it what is in flight along each axis of "
        "the grid. A lane is filled in part where more happens than the picture can tell apart."
    )
    said = f"{describe_steps([panel])} Predicted, not measured."
    return [Figure(title, caption, drawing, list_spans(row.timeline), f"{name}-step", said)]
