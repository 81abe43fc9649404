"""The bubbles of GPipe, 1F1B and the zero bubble, each beside what one expects of it and with what is decided of it."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from engine.result import bubble
from engine.result.bubble import Bubble
from engine.result.interval import NOTHING_KNOWN
from engine.result.metrics import Paired
from reports import text
from reports.columns import columns_of
from reports.methods import INTERVALS
from reports.page import Column, Table
from reports.schedules import Compared

NAME = "bubbles"
NOTE = (
    "The bubble is the time in which a stage waits for others by that in which it works. Expected is (p - 1) / m of p "
    "stages and m micro-batches, and of the zero bubble half of that. GPipe and 1F1B pass where the time in their "
    f"bubble is within {text.percent(bubble.OFF)} of a step of that, the zero bubble where it is no longer. Undecided "
    "is what an interval leaves open, and whatever was measured where stages differ by more than "
    f"{text.percent(bubble.UNEVEN)} or ranks share cores. {INTERVALS}"
)


def bubbles(found: Sequence[Compared]) -> Table | None:
    """Judge the schedules of all settings in which nothing was slowed down; None if there are none."""
    rows = []
    for one in found:
        if one.first["disturbed"]:
            continue
        for (_, row), records in zip(one.table.iterrows(), one.records, strict=True):
            if (judged := bubble.judge(records, one.micro_batches)) is not None:
                setting = {key: one.first[key] for key in ("system", "model", "grid", "ranks")}
                counts = {key: row[key] for key in ("schedule", "jobs", "rounds")}
                rows.append(setting | counts | {"micro_batches": one.micro_batches} | _judged(judged))
    if not rows:
        return None
    columns = columns_of(
        Column("Schedule", "schedule", numeric=False),
        Column("Micro-batches", "micro_batches", text.count),
        Column("Expected", "formula_bubble", text.percent, figure="formula_bubble"),
        Column("Measured", "bubble", text.percent, figure="bubble", spread=_of("bubble")),
        Column("Off, of a step", "bubble_off", text.signed, figure="bubble_off", spread=_of("bubble_off")),
        Column("Stages differ by", "stages_differ", text.percent, figure="stages_differ"),
        Column("Outcome", "outcome", numeric=False, bad=frozenset({"fail"})),
        Column("Why", "why", numeric=False, missing=""),
        "jobs rounds model grid system",
    )  # fmt: skip
    return Table("Bubbles", columns, pd.DataFrame(rows), NAME, NOTE)


def _of(key: str) -> tuple[str, str]:
    return f"{key}_low", f"{key}_high"


def _judged(one: Bubble) -> dict[str, Any]:
    row = {"formula_bubble": one.expected, "stages_differ": one.uneven, "outcome": one.outcome, "why": one.why}
    return row | _spread("bubble", one.measured) | _spread("bubble_off", one.off)


def _spread(key: str, of: Paired) -> dict[str, float]:
    ends = (math.nan, math.nan) if of.interval == NOTHING_KNOWN else of.interval
    return {key: of.ratio} | dict(zip(_of(key), ends, strict=True))
