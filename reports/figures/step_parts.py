"""Picture and table of where a step of either side of a contest goes, by its profile (par4d Fig. 10)."""

from typing import Any

import pandas as pd

from engine.result.schema.peers import PARTS, SIDES
from reports import text
from reports.columns import columns_of
from reports.page import Block, Column, Figure, Figures, Paragraph, Table
from reports.plots.canvas import WIDE
from reports.plots.rows import Bars, Row, stacked
from reports.words import NOTES

STACKED = {
    "alone": ("work alone", "blue"),
    "hidden": ("work beside communication", "green"),
    "rest": ("neither", "muted"),
    "exposed": ("exposed communication", "red"),
}
"""Parts that add up to a step: the words of each and its colour."""
LISTED = {"step": "Step", "work": "Work", "rest": "Neither", "hidden": "Hidden", "exposed": "Exposed"}
OURS = "the engine"


def step_parts(name: str, rows: pd.DataFrame) -> list[Block]:
    """Draw and list the parts of both sides of each contest that has them, of rows as contests.points makes them."""
    found = _drawn(name, rows[rows["parted"] > 0])
    lacks = [f"{row['peer']} ({row['unparted']})" for _, row in rows[rows["unparted"] != ""].iterrows()]
    return [*found, Paragraph(f"A step could not be parted beside {'; '.join(lacks)}.")] if lacks else found


def _drawn(name: str, rows: pd.DataFrame) -> list[Block]:
    if rows.empty:
        return []
    data = pd.DataFrame([_side(row, side) for _, row in rows.iterrows() for side in SIDES])
    data = data[data["step_s"].notna()].reset_index(drop=True)
    return [Figures((_figure(name, data),), wide=True), _table(name, data)]


def _side(row: "pd.Series[Any]", side: str) -> dict[str, object]:
    """Return the parts of a side, whose own names have no side."""
    ours = side == SIDES[0]
    about = {
        "peer": row["peer"],
        "trainer": OURS if ours else row["peer"],
        "laid_out": row["grid"] if ours else row["layout"] or row["grid"],
        "jobs": row["parted"],
        "timed_s": row[f"{side}_s"],
    }
    return about | {f"{part}_s": row[f"{side}_{part}_s"] for part in (*PARTS, "alone")}


def _figure(name: str, data: pd.DataFrame) -> Figure:
    bars = [Bars(label, data[f"{part}_s"].tolist(), colour) for part, (label, colour) in STACKED.items()]
    headings = [peer if peer != former else "" for former, peer in zip(["", *data["peer"]], data["peer"], strict=False)]
    drawn = [
        Row(
            row["trainer"],
            heading=f"beside {heading}" if heading else "",
            notes=(row["laid_out"], text.seconds(row["step_s"]), text.seconds(row["exposed_s"])),
        )
        for heading, (_, row) in zip(headings, data.iterrows(), strict=True)
    ]
    said = "; ".join(
        f"{row['trainer']} {text.seconds(row['step_s'])}, {text.seconds(row['exposed_s'])} of it exposed communication"
        for _, row in data.iterrows()
    )
    title, caption = "Where a step goes", NOTES["parted"]
    heads = ("layout", "step", "exposed")
    drawing = stacked(bars, drawn, "seconds of a profiled step on rank 0", columns=heads, width=WIDE)
    return Figure(title, caption, drawing, data, f"{name}-parts", f"{said}. {caption}")


def _table(name: str, data: pd.DataFrame) -> Table:
    columns = columns_of(
        "peer",
        Column("Side", "trainer", numeric=False),
        Column("Layout", "laid_out", numeric=False),
        *(Column(title, f"{part}_s", text.seconds) for part, title in LISTED.items()),
        Column("Step, not profiled", "timed_s", text.seconds),
        "jobs",
        peer="Contest with",
    )
    return Table("Parts of a step", columns, data, f"{name}-step-parts")
