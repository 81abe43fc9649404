"""Rates of matrix products by size: one curve a number format, its best size marked, beside what peaks are known."""

import math
from typing import Any

import pandas as pd

from engine.result import metrics
from reports import peaks, text
from reports.columns import NOT_KNOWN, columns_of
from reports.derived import by_row
from reports.frame import Frames
from reports.jobs import measured_by
from reports.page import Column, Figure, KeyFact, Table
from reports.peaks import Peaks
from reports.plots.canvas import Scale
from reports.plots.lines import Line, lines

ORDER = ("bf16", "fp16", "tf32", "fp32", "fp64")
MOST_FORMATS = 8


def by_size(frames: Frames, runs: pd.DataFrame) -> pd.DataFrame:
    """Make one row a matrix size: median, extremes and number of the jobs that measured it, or why it was skipped.

    Of one number format, whose share of the advertised peak is of_advertised.
    """
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
    """Part the runs that measured matrix products by number format, that of fewest bits first, into their sizes."""
    gemm = runs[runs["kind"] == "gemm"]
    found = sorted(gemm["dtype"].unique(), key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name))
    return {name: by_size(frames, gemm[gemm["dtype"] == name]) for name in found[:MOST_FORMATS]}


def best(table: pd.DataFrame) -> "pd.Series[Any] | None":
    """Return the row of the fastest size; None where none was measured."""
    done = table.dropna(subset="flops_per_s").sort_values("flops_per_s")
    return None if done.empty else done.iloc[-1]


def fact(dtype: str, table: pd.DataFrame, runs: pd.DataFrame) -> KeyFact:
    what, fastest = f"best rate of a rank in {text.clean(dtype, 20)}", best(table)
    failed = int(((runs["kind"] == "gemm") & (runs["dtype"] == dtype) & (runs["status"] != "ok")).sum())
    more = f", {failed} more failed" if failed else ""
    if fastest is None:
        return None, what, f"no job ended well{more}"
    share = fastest["of_advertised"]
    of = f"{text.percent(share)} of the advertised peak" if share == share else "no advertised peak is known"
    jobs = text.plural(int(fastest["jobs"]), "job")
    return text.flops(fastest["flops_per_s"]), what, f"{of}; matrices of {fastest['size']:,}, {jobs}{more}"


def figure(name: str, dtype: str, table: pd.DataFrame, known: Peaks) -> Figure | None:
    fastest = best(table)
    if fastest is None:
        return None
    sizes = table["size"].tolist()
    references = (("advertised", known.advertised, "muted"), ("published", known.empirical, "red"))
    highest = max([table["flops_per_s_high"].max(), *(peak.value for _, peak, _ in references if peak)])
    factor, letter = text.prefix(highest)
    drawn = [
        Line([min(sizes), max(sizes)], [peak.value] * 2, colour, label, kind="guide")
        for label, peak, colour in references
        if peak
    ]
    rates = Line.of(table, "size", "flops_per_s", "blue")
    drawn.append(rates.between(table, "flops_per_s_low", "flops_per_s_high"))
    rate = fastest["flops_per_s"]
    drawn.append(Line([fastest["size"]], [rate], "blue", f"best {text.significant(rate / factor, 3)}", kind="best"))
    sources = [f"{label} {text.flops(peak.value)} ({peak.source})" for label, peak, _ in references if peak]
    caption = "Ring: the best size. Upright lines span the jobs." + (
        f" Dotted: {'; '.join(sources)}; published is what others measured."
        if known.empirical
        else f" Dotted: {'; '.join(sources)}."
        if sources
        else ""
    )
    title = f"Matrix products in {text.clean(dtype, 20)}"
    x = Scale("rows of the square matrices", "log2", write=text.count)
    y = Scale(f"{letter}flop/s of a rank", from_zero=True, write=lambda value: f"{value / factor:,.4g}")
    best_words = f"Best: {text.flops(rate)} at {fastest['size']:,}. {caption}"
    return Figure(title, caption, lines(drawn, x, y), table, name, best_words)


def table(name: str, formats: dict[str, pd.DataFrame]) -> Table:
    columns = columns_of(
        "dtype size flops_per_s flops_per_s_low flops_per_s_high",
        Column("Of advertised peak", "of_advertised", text.percent, missing=NOT_KNOWN, figure="utilisation"),
        "median_time_s jobs skipped",
    )
    rows = pd.concat([sizes.assign(dtype=text.clean(dtype, 20)) for dtype, sizes in formats.items()], ignore_index=True)
    return Table("Matrix products by size", columns, rows, f"{name}-sizes")
