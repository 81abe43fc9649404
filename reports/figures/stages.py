"""Time in stages over their number, on as many devices (axonn-ipdps22 V-B and Fig. 5)."""

import math
from collections.abc import Sequence

import pandas as pd

from engine.result import metrics
from engine.result.gate import NOTHING_KNOWN
from engine.result.judges import bubble
from engine.result.schema.contest import ScheduleSide
from reports import text
from reports.columns import columns_of
from reports.page import Figure, Table
from reports.plots.canvas import Scale
from reports.plots.lines import Line, lines
from reports.words import NOTES

TIMES = ("in_stages_s", "in_stages_s_low", "in_stages_s_high")
COLUMNS = ("stages", "grid", "schedule", *TIMES, "time_s", "jobs", "rounds")
_COLOURS = ("blue", "red", "green", "purple", "gold", "sky", "muted")
_CAPTION = (
    "The time of a step in which stages work or wait for one another, without sums of gradients over data that stand "
    "alone and without the optimizer: medians over jobs. Bars are intervals over jobs, or over the rounds of the only "
    "one. Of several grids with as many stages that with the fastest 1f1b."
)


def time_in_stages(jobs: Sequence[ScheduleSide]) -> dict[str, float]:
    """Return the time of a schedule's stages over its jobs and its interval; NaN where no job kept the times."""
    timed = [[one.in_stages_s for one in rounds] for job in jobs if (rounds := list(bubble.rounds_of(job)))]
    if not timed:
        return dict.fromkeys(TIMES, math.nan)
    # a time over one second is a ratio, as intervals take it
    found = metrics.paired([[(time_s, 1.0) for time_s in times] for times in timed])
    low, high = (math.nan, math.nan) if found.interval == NOTHING_KNOWN else found.interval
    return dict(zip(TIMES, (found.ratio, low, high), strict=True))


def fastest_grids(rows: pd.DataFrame, base: str) -> pd.DataFrame:
    """Keep of each number of stages the grid with the fastest base, or with the fastest schedule where none has one.

    Nothing is kept unless there are two numbers of stages or more.
    """
    timed = rows.dropna(subset="in_stages_s")
    order = timed.assign(other=timed["schedule"] != base).sort_values(["stages", "other", "time_s"], kind="stable")
    chosen = order.drop_duplicates("stages")[["stages", "grid"]]
    if len(chosen) < 2:
        return timed.iloc[:0]
    return timed.merge(chosen, on=["stages", "grid"])


def over_stages(name: str, rows: pd.DataFrame) -> Figure:
    """Draw a line a schedule."""
    drawn = []
    for colour, (schedule, mine) in zip(_COLOURS, rows.groupby("schedule", sort=False), strict=False):
        line = Line.of(mine.sort_values("stages"), "stages", "in_stages_s", colour, str(schedule))
        drawn.append(line.between(mine.sort_values("stages"), "in_stages_s_low", "in_stages_s_high"))
    drawing = lines(drawn, Scale("stages", "log2", write=text.count), Scale("seconds in stages", from_zero=True))
    said = [
        f"{line.label}: "
        + ", ".join(f"{text.seconds(y)} of {text.plural(int(x), 'stage')}" for x, y in zip(line.x, line.y, strict=True))
        for line in drawn
    ]
    left_out = rows["schedule"].nunique() - len(drawn)
    caption = _CAPTION + (f" {text.plural(left_out, 'further schedule')} in the table." if left_out else "")
    return Figure("Time over stages", caption, drawing, rows[[*COLUMNS]], f"{name}-stages", f"{'. '.join(said)}.")


def table(name: str, rows: pd.DataFrame) -> Table:
    """List the points of the lines."""
    columns = columns_of("schedule stages grid in_stages_s time_s jobs rounds", time_s="Step")
    return Table("Times over stages", columns, rows, f"{name}-stage-times", NOTES["intervals"])
