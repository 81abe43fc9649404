"""Contests of the tuned engine with the untuned one, as points with what their ratio means."""

from typing import Any

import pandas as pd

from engine.result import metrics
from reports.contest_figure import COLOURS
from reports.contest_points import points
from reports.derived import by_row


def steps(held: pd.DataFrame) -> pd.DataFrame:
    """One row a contest: that of contests.points, speed_up, meaning in words, and the colour of its dot.

    held: the contests with the peer "untuned".
    """
    table = points(held)
    meaning = [_meaning(row) for _, row in table.iterrows()]
    colour = table["verdict"].map(COLOURS).where(table["changed"] != 0).fillna("muted")
    speed_up = by_row(metrics.speed_up, 1.0, table["ratio"].astype(float)) if len(table) else 1.0
    return table.assign(meaning=meaning, colour=colour, speed_up=speed_up)


def _meaning(row: "pd.Series[Any]") -> str:
    if not row["jobs"]:
        return "failed"
    if row["changed"] == 0:
        return "nothing changed: 1.0 by definition"
    return {"won": "faster", "lost": "slower"}.get(row["verdict"], "undecided")
