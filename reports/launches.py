"""Launch latency: what a tiny operator costs, by the way it is launched."""

import pandas as pd

from reports import text
from reports.columns import columns_of
from reports.frame import Frames
from reports.jobs import measured_by
from reports.page import KeyFact, Table

WORDS = {
    "dispatch": "until the call returns to the host",
    "completion": "from the call to its end on the device",
    "graph": "from the replay of a captured graph to its end",
}


def by_way(frames: Frames, runs: pd.DataFrame) -> pd.DataFrame:
    """Make one row a way to launch: medians over jobs of the jobs' medians and percentiles, and the number of jobs."""
    rows = measured_by(frames.launches, runs)
    table = rows.groupby("name", sort=False).agg(
        launch_s=("launch_s", "median"),
        low_s=("low_s", "median"),
        high_s=("high_s", "median"),
        operators=("operators", "max"),
        samples=("samples", "min"),
        jobs=("launch_s", "count"),
    )
    return table.reset_index().assign(way=lambda table: table["name"].map(WORDS))


def fact(table: pd.DataFrame) -> KeyFact:
    row = table.iloc[0]
    jobs = text.plural(int(row["jobs"]), "job")
    return text.seconds(row["launch_s"]), "to launch a tiny operator", f"{row['way']}; {jobs}"


def table(name: str, rows: pd.DataFrame) -> Table:
    columns = columns_of("way launch_s low_s high_s operators samples jobs")
    return Table("Launch latency", columns, rows, f"{name}-launches")
