"""Memory bandwidth by kernel of STREAM beside the advertised one, and what it takes to launch a tiny operator."""

import math

import pandas as pd

import systems
from engine.result import metrics
from reports import text
from reports.columns import NOT_KNOWN, columns_of
from reports.derived import by_row
from reports.frames.frame import Frames
from reports.frames.jobs import measured_by
from reports.page import Column, Figure, KeyFact, Table
from reports.plots.rows import Bars, Row, stacked
from reports.read.peaks import TIMES_THE_CACHE, advertised_bandwidth
from reports.words import NOTES

LAUNCHES = {
    "dispatch": "until the call returns to the host",
    "completion": "from the call to its end on the device",
    "graph": "from the replay of a captured graph to its end",
}


def by_kernel(frames: Frames, runs: pd.DataFrame) -> pd.DataFrame:
    """Make a row a kernel, in STREAM's order: median and extremes of the jobs' best repeats, and how many jobs."""
    rows = measured_by(frames.stream, runs)
    table = rows.groupby("kernel", sort=False).agg(
        bytes_per_s=("best_bytes_per_s", "median"),
        bytes_per_s_low=("best_bytes_per_s", "min"),
        bytes_per_s_high=("best_bytes_per_s", "max"),
        median_bytes_per_s=("median_bytes_per_s", "median"),
        array_bytes=("array_bytes", "min"),
        cache_bytes=("cache_bytes", "max"),
        repeats=("repeats", "min"),
        jobs=("best_bytes_per_s", "count"),
    )
    known = advertised_bandwidth(runs.iloc[0]["system"]) if len(runs) else None
    peak = known.value if known else math.nan
    table["advertised"] = peak
    table["of_advertised"] = by_row(metrics.of_advertised_bandwidth, table["bytes_per_s"], peak)
    return table.reset_index()


def triad(table: pd.DataFrame) -> KeyFact:
    row = table[table["kernel"] == "triad"].iloc[0]
    share = row["of_advertised"]
    of = f"{text.percent(share)} of the advertised bandwidth" if share == share else "none is advertised"
    jobs = text.plural(int(row["jobs"]), "job")
    remark = f"{of}; arrays of {text.size(row['array_bytes'])}, {jobs}"
    return text.rate(row["bytes_per_s"]), "memory bandwidth of a rank, triad", remark


def bandwidths(name: str, table: pd.DataFrame, known: systems.Fact | None) -> Figure:
    """Draw a bar a kernel, and an upright mark where the advertised bandwidth is."""
    factor, letter = text.prefix(max([table["bytes_per_s"].max(), *([known.value] if known else [])]))
    unit = f"{letter}B/s"
    rows = [
        Row(
            str(row["kernel"]),
            row["bytes_per_s_low"] / factor,
            row["bytes_per_s_high"] / factor,
            row["advertised"] / factor,
            notes=(
                text.significant(row["bytes_per_s"] / factor, 3),
                *([f"{100 * row['of_advertised']:.0f} %"] if known else []),
            ),
        )
        for _, row in table.iterrows()
    ]
    caption = "STREAM's kernels, the best repeat; whiskers span the jobs."
    if known:
        caption += f" Upright mark: advertised, {text.rate(known.value)} ({known.source})."
    drawing = stacked(
        [Bars("best repeat", [value / factor for value in table["bytes_per_s"]], "green")],
        rows,
        f"{unit} of a rank",
        columns=(unit, "of peak") if known else (unit,),
        mark="advertised",
    )
    return Figure("Memory bandwidth", caption, drawing, table, name, caption)


def kernel_table(name: str, rows: pd.DataFrame) -> Table:
    columns = columns_of(
        "kernel bytes_per_s bytes_per_s_low bytes_per_s_high median_bytes_per_s",
        Column("Of advertised", "of_advertised", text.percent, missing=NOT_KNOWN, figure="of_advertised_bandwidth"),
        "array_bytes",
        Column("Last-level caches", "cache_bytes", text.size, missing=NOT_KNOWN),
        "repeats jobs",
    )
    cached = bool((rows["array_bytes"] < TIMES_THE_CACHE * rows["cache_bytes"]).any())
    return Table("Memory bandwidth by kernel", columns, rows, f"{name}-bandwidth", NOTES["cached"] if cached else "")


def by_launch(frames: Frames, runs: pd.DataFrame) -> pd.DataFrame:
    """Make a row a way to launch: medians over jobs of the jobs' medians and percentiles, and the number of jobs."""
    rows = measured_by(frames.launches, runs)
    table = rows.groupby("name", sort=False).agg(
        **{key: (key, "median") for key in ("launch_s", "low_s", "high_s")},
        operators=("operators", "max"),
        samples=("samples", "min"),
        jobs=("launch_s", "count"),
    )
    return table.reset_index().assign(way=lambda table: table["name"].map(LAUNCHES))


def launch_latency(table: pd.DataFrame) -> KeyFact:
    row = table.iloc[0]
    jobs = text.plural(int(row["jobs"]), "job")
    return text.seconds(row["launch_s"]), "to launch a tiny operator", f"{row['way']}; {jobs}"


def launch_table(name: str, rows: pd.DataFrame) -> Table:
    columns = columns_of("way launch_s low_s high_s operators samples jobs")
    return Table("Launch latency", columns, rows, f"{name}-launches")
