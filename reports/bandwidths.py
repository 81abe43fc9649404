"""Memory bandwidth by kernel of STREAM, beside the advertised one."""

import math

import pandas as pd

import systems
from engine.result import metrics
from reports import text
from reports.columns import NOT_KNOWN, columns_of
from reports.derived import by_row
from reports.frame import Frames
from reports.jobs import measured_by
from reports.page import Column, Figure, KeyFact, Table
from reports.peaks import TIMES_THE_CACHE, advertised_bandwidth
from reports.plots.rows import Bars, Row, stacked

NOTE = (
    "Arrays of less than four times the last-level cache, as the memory was too small or a size was asked for: part of "
    "what they reach is the cache's."
)


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


def fact(table: pd.DataFrame) -> KeyFact:
    row = table[table["kernel"] == "triad"].iloc[0]
    share = row["of_advertised"]
    of = f"{text.percent(share)} of the advertised bandwidth" if share == share else "none is advertised"
    arrays = f"arrays of {text.size(row['array_bytes'])}"
    what = "memory bandwidth of a rank, triad"
    return text.rate(row["bytes_per_s"]), what, f"{of}; {arrays}, {text.plural(int(row['jobs']), 'job')}"


def figure(name: str, table: pd.DataFrame, known: systems.Fact | None) -> Figure:
    """Draw a bar a kernel, and an upright mark where the advertised bandwidth is."""
    factor, letter = text.prefix(max([table["bytes_per_s"].max(), *([known.value] if known else [])]))
    scaled = [value / factor for value in table["bytes_per_s"]]
    shares = [(f"{100 * share:.0f} %",) if known else () for share in table["of_advertised"]]
    bars = [
        Row(
            str(row["kernel"]),
            row["bytes_per_s_low"] / factor,
            row["bytes_per_s_high"] / factor,
            row["advertised"] / factor,
            notes=(text.significant(row["bytes_per_s"] / factor, 3), *share),
        )
        for (_, row), share in zip(table.iterrows(), shares, strict=True)
    ]
    title = "Memory bandwidth"
    unit = f"{letter}B/s"
    caption = "STREAM's kernels, the best repeat; whiskers span the jobs." + (
        f" Upright mark: advertised, {text.rate(known.value)} ({known.source})." if known else ""
    )
    drawing = stacked(
        [Bars("best repeat", scaled, "green")],
        bars,
        f"{unit} of a rank",
        columns=(unit, "of peak") if known else (unit,),
        mark="advertised",
    )
    return Figure(title, caption, drawing, table, name, caption)


def table(name: str, rows: pd.DataFrame) -> Table:
    columns = columns_of(
        "kernel bytes_per_s bytes_per_s_low bytes_per_s_high median_bytes_per_s",
        Column("Of advertised", "of_advertised", text.percent, missing=NOT_KNOWN, figure="of_advertised_bandwidth"),
        "array_bytes",
        Column("Last-level caches", "cache_bytes", text.size, missing=NOT_KNOWN),
        "repeats jobs",
    )
    cached = bool((rows["array_bytes"] < TIMES_THE_CACHE * rows["cache_bytes"]).any())
    return Table("Memory bandwidth by kernel", columns, rows, f"{name}-bandwidth", NOTE if cached else "")
