"""Rates of matrix products: by size, a curve a number format beside known peaks, and by mode (axonn-sc24 V-C)."""

import math
from typing import Any

import pandas as pd

from engine.result import metrics
from reports import text
from reports.columns import NOT_KNOWN, columns_of
from reports.derived import by_row
from reports.frames.frame import Frames
from reports.frames.jobs import measured_by
from reports.page import Column, Figure, KeyFact, Table
from reports.plots.canvas import Scale
from reports.plots.lines import Line, lines
from reports.read import peaks
from reports.read.peaks import Peaks
from reports.words import NOTES

ORDER = ("bf16", "fp16", "tf32", "fp32", "fp64")
MOST_FORMATS = 8


def by_size(frames: Frames, runs: pd.DataFrame) -> pd.DataFrame:
    """Make a row a matrix size of one number format: median, extremes and number of jobs, or why it was skipped."""
    rows = measured_by(frames.gemm, runs)
    grouped = rows.groupby("size")
    table = grouped.agg(
        flops_per_s=("flops_per_s", "median"),
        flops_per_s_low=("flops_per_s", "min"),
        flops_per_s_high=("flops_per_s", "max"),
        median_time_s=("median_time_s", "median"),
        jobs=("flops_per_s", "count"),
    )
    table["skipped"] = rows.dropna(subset="skipped").groupby("size")["skipped"].last()
    table["skipped"] = table["skipped"].fillna("").map(text.clean)
    known = peaks.facts(runs.iloc[0]["system"], runs.iloc[0]["dtype"]) if len(runs) else Peaks()
    advertised = known.advertised.value if known.advertised else math.nan
    table["of_advertised"] = by_row(metrics.utilisation, table["flops_per_s"], 1, advertised)
    return table.reset_index()


def by_format(frames: Frames, runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the sizes of each number format, that of fewest bits first."""
    gemm = runs[runs["kind"] == "gemm"]
    formats = sorted(
        gemm["dtype"].unique(), key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name)
    )
    return {name: by_size(frames, gemm[gemm["dtype"] == name]) for name in formats[:MOST_FORMATS]}


def fastest_size(table: pd.DataFrame) -> "pd.Series[Any] | None":
    """Return the row of the fastest size; None where none was measured."""
    done = table.dropna(subset="flops_per_s").sort_values("flops_per_s")
    return None if done.empty else done.iloc[-1]


def best_rate(dtype: str, table: pd.DataFrame, runs: pd.DataFrame) -> KeyFact:
    what, fastest = f"best rate of a rank in {text.clean(dtype, 20)}", fastest_size(table)
    failed = int(((runs["kind"] == "gemm") & (runs["dtype"] == dtype) & (runs["status"] != "ok")).sum())
    more = f", {failed} more failed" if failed else ""
    if fastest is None:
        return None, what, f"no job ended well{more}"
    share = fastest["of_advertised"]
    of = f"{text.percent(share)} of the advertised peak" if share == share else "no advertised peak is known"
    jobs = text.plural(int(fastest["jobs"]), "job")
    return text.flops(fastest["flops_per_s"]), what, f"{of}; matrices of {fastest['size']:,}, {jobs}{more}"


def curve(name: str, dtype: str, table: pd.DataFrame, known: Peaks) -> Figure | None:
    """Draw the rate by size, the best size marked, beside the known peaks; None where nothing was measured."""
    fastest = fastest_size(table)
    if fastest is None:
        return None
    references = [
        (label, peak, colour)
        for label, peak, colour in (("advertised", known.advertised, "muted"), ("published", known.empirical, "red"))
        if peak
    ]
    factor, letter = text.prefix(max([table["flops_per_s_high"].max(), *(peak.value for _, peak, _ in references)]))
    ends = [table["size"].min(), table["size"].max()]
    rate = fastest["flops_per_s"]
    drawn = [
        *(Line(ends, [peak.value] * 2, colour, label, kind="guide") for label, peak, colour in references),
        Line.of(table, "size", "flops_per_s", "blue").between(table, "flops_per_s_low", "flops_per_s_high"),
        Line([fastest["size"]], [rate], "blue", f"best {text.significant(rate / factor, 3)}", kind="best"),
    ]
    caption = "Ring: the best size. Upright lines span the jobs."
    if references:
        sources = "; ".join(f"{label} {text.flops(peak.value)} ({peak.source})" for label, peak, _ in references)
        caption += f" Dotted: {sources}{'; published is what others measured' if known.empirical else ''}."
    x = Scale("rows of the square matrices", "log2", write=text.count)
    y = Scale(f"{letter}flop/s of a rank", from_zero=True, write=lambda value: f"{value / factor:,.4g}")
    description = f"Best: {text.flops(rate)} at {fastest['size']:,}. {caption}"
    title = f"Matrix products in {text.clean(dtype, 20)}"
    return Figure(title, caption, lines(drawn, x, y), table, name, description)


def size_table(name: str, formats: dict[str, pd.DataFrame]) -> Table:
    columns = columns_of(
        "dtype size flops_per_s flops_per_s_low flops_per_s_high",
        Column("Of advertised peak", "of_advertised", text.percent, missing=NOT_KNOWN, figure="utilisation"),
        "median_time_s jobs skipped",
    )
    rows = pd.concat([sizes.assign(dtype=text.clean(dtype, 20)) for dtype, sizes in formats.items()], ignore_index=True)
    return Table("Matrix products by size", columns, rows, f"{name}-sizes")


def by_mode(frames: Frames, runs: pd.DataFrame) -> pd.DataFrame:
    """Make a row a number format, size and mode: medians over jobs that ended well."""
    columns = {name: (name, "median") for name in ("flops_per_s", "of_nn")}
    rows = measured_by(frames.modes, runs)
    grouped = rows.groupby(["dtype", "size", "mode"], sort=False)
    return grouped.agg(**columns, jobs=("run", "count")).reset_index()


def mode_table(name: str, rows: pd.DataFrame) -> Table:
    columns = columns_of("dtype size mode flops_per_s of_nn jobs")
    return Table("Matrix products by mode", columns, rows, f"{name}-modes", NOTES["modes"])
