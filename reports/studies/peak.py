"""Peak: what a device really reaches in large matrix multiplications, alone or all at once (axonn-sc24 VI-C)."""

import math
from typing import Any

import pandas as pd

from engine.result import metrics
from reports import charts, peaks, published, text
from reports.charts import Line, Scale
from reports.derived import by_row
from reports.frame import SERIES, Frames, series_title
from reports.page import Block, Column, Facts, Figure, Figures, Page, Paragraph, Section, Table, nothing_measured
from reports.peaks import Peaks
from reports.provenance import failures, provenance
from reports.study import Study

TITLE = "Peak"
SUMMARY = (
    "Matrix-multiplication rate of a device per size, alone or with others at once, against the advertised and the "
    "published empirical peak."
)
LEAD = (
    "Square matrices are multiplied on one device, or on every rank of a job at once, where a rank has what the others "
    "leave it. The best rate is the empirical peak: what a program can hope for, which is less than what the vendor "
    "advertises. Sizes that did not fit in memory or time are named as skipped."
)
RUN = "reframe -c suites/peak.py --system local"
MOST_SECTIONS = 12
TOGETHER = [*SERIES, "ranks", "threads"]


def build(mine: Frames, everything: Frames) -> Page:
    """The page; with no runs it says what to run."""
    groups = [rows for _, rows in mine.runs.groupby(TOGETHER, dropna=False, sort=True)][:MOST_SECTIONS]
    titles = [_title(rows.iloc[0]) for rows in groups]
    sections = [
        _section(name, title, rows, mine) for name, title, rows in zip(text.slugs(titles), titles, groups, strict=True)
    ]
    if not groups:
        sections.append(nothing_measured(RUN))
    else:
        details: tuple[Block, ...] = (_best(mine.runs), *failures(mine.runs, "all_jobs"), provenance(mine.runs))
        sections.append(Section("Details", details))
    sections.append(_published())
    return Page(TITLE, LEAD, tuple(sections), _headline(mine.runs), empty=not groups)


STUDY = Study("peak", TITLE, SUMMARY, 5, lambda runs: runs["kind"] == "gemm", build)


def by_size(frames: Frames, runs: pd.DataFrame) -> pd.DataFrame:
    """One row a matrix size: median, extremes and number of the jobs that measured it, or why it was skipped."""
    ok = runs.index[runs["status"] == "ok"]
    rows = frames.gemm[frames.gemm["run"].isin(ok)]
    grouped = rows.groupby("size")
    table = grouped.agg(
        flops_per_s=("flops_per_s", "median"), flops_per_s_low=("flops_per_s", "min"),
        flops_per_s_high=("flops_per_s", "max"), median_time_s=("median_time_s", "median"),
        jobs=("flops_per_s", "count"),
    )  # fmt: skip
    table["skipped"] = rows.dropna(subset="skipped").groupby("size")["skipped"].last()
    table["skipped"] = table["skipped"].fillna("").map(text.clean)
    return table.reset_index()


def at_once(run: "pd.Series[Any]") -> str:
    """How many ranks multiplied, and with how many threads where processors did."""
    ranks = "one rank alone" if run["ranks"] == 1 else f"{run['ranks']:,} ranks at once"
    threads = run["threads"] if run["device_kind"] == "cpu" else ""
    words = f", {threads} {'thread' if threads == '1' else 'threads'}{' each' if run['ranks'] > 1 else ''}"
    return ranks + (words if threads else "")


def _title(run: "pd.Series[Any]") -> str:
    return text.clean(f"{series_title(run)}, {at_once(run)}", 160)


def _headline(runs: pd.DataFrame) -> str:
    done = runs.dropna(subset="best_flops_per_s").sort_values("best_flops_per_s")
    if done.empty:
        return "nothing measured"
    best = done.iloc[-1]
    rate = f"{text.flops(best['best_flops_per_s'])} a rank in {best['dtype']}"
    return f"best {rate} on {best['system'] or 'an unnamed system'}, {at_once(best)}"


def _section(name: str, title: str, rows: pd.DataFrame, mine: Frames) -> Section:
    first = rows.iloc[0]
    known = peaks.facts(first["system"], first["dtype"])
    advertised = known.advertised.flops_per_s if known.advertised else math.nan
    table = by_size(mine, rows)
    table["of_advertised"] = by_row(metrics.utilisation, table["flops_per_s"], 1, advertised)
    blocks: list[Block] = []
    if table["flops_per_s"].notna().any():
        best = table.sort_values("flops_per_s", na_position="first").iloc[-1]
        peak = known.advertised
        share = text.percent(best["of_advertised"]) if peak else None
        blocks.append(
            Facts(
                (
                    (
                        text.flops(best["flops_per_s"]),
                        "a rank, best size",
                        f"{at_once(first)}, matrices of {best['size']:,}",
                    ),
                    (share, "of the advertised peak", peak.source if peak else "no advertised peak is known"),
                    (text.count(best["jobs"]), "job" if best["jobs"] == 1 else "jobs", _median_of(rows)),
                )
            )
        )
        blocks.append(Figures((_figure(name, table, known),)))
    else:
        blocks.append(Paragraph("Not measured: no job of this system ended well."))
    columns = (
        Column("Size", "size", text.count),
        Column("Rate of a rank", "flops_per_s", text.flops, figure="gemm_rate"),
        Column("Lowest job", "flops_per_s_low", text.flops, figure="gemm_rate"),
        Column("Highest job", "flops_per_s_high", text.flops, figure="gemm_rate"),
        Column("Of advertised peak", "of_advertised", text.percent, missing="not known", figure="utilisation"),
        Column("Time", "median_time_s", text.seconds),
        Column("Jobs", "jobs", text.count),
        Column("Skipped because", "skipped", numeric=False, missing="", wide=True),
    )
    if len(table):
        blocks.append(Table("Matrix multiplication by size", columns, table, f"{name}-sizes"))
    return Section(title, tuple(blocks), f"series-{name}")


def _median_of(rows: pd.DataFrame) -> str:
    failed = int((rows["status"] != "ok").sum())
    return "median over jobs" + (f", {failed} more failed" if failed else "")


def _best(runs: pd.DataFrame) -> Table:
    """The best rate of every job."""
    data = runs.dropna(subset="best_flops_per_s").sort_values(["system", "dtype", "ranks", "end"])
    columns = (
        Column("System", "system", numeric=False, missing="unnamed"),
        Column("Partition", "partition", numeric=False, missing="none"),
        Column("Number format", "dtype", numeric=False),
        Column("Ranks at once", "ranks", text.count),
        Column("Threads of each", "threads", numeric=False, missing="not told"),
        Column("Best rate of a rank", "best_flops_per_s", text.flops, figure="gemm_rate"),
        Column("End", "end", text.moment, missing="unknown"),
    )
    return Table("Best rate of every job", columns, data, "best_rates")


def _figure(name: str, table: pd.DataFrame, known: Peaks) -> Figure:
    sizes = table["size"].tolist()
    ends = [min(sizes), max(sizes)]
    references = (("advertised", known.advertised, "muted"), ("empirical", known.empirical, "red"))
    highest = max([table["flops_per_s_high"].max(), *(peak.flops_per_s for _, peak, _ in references if peak)])
    factor, letter = text.prefix(highest)
    drawn = [
        Line(ends, [peak.flops_per_s] * 2, colour, label, kind="guide") for label, peak, colour in references if peak
    ]
    low, high = table["flops_per_s_low"].tolist(), table["flops_per_s_high"].tolist()
    drawn.append(Line(sizes, table["flops_per_s"].tolist(), "blue", "measured", low, high))
    sources = [f"{label} {text.flops(peak.flops_per_s)} ({peak.source})" for label, peak, _ in references if peak]
    title = "Rate by matrix size"
    caption = "Bars span the jobs." + (f" Dotted: {'; '.join(sources)}." if sources else "")
    scale = Scale(f"{letter}flop/s", from_zero=True, write=lambda value: f"{value / factor:,.4g}")
    x = Scale("rows of the square matrices", "log2", write=text.count)
    best = table.sort_values("flops_per_s", na_position="first").iloc[-1]
    return Figure(
        title, caption,
        charts.lines(drawn, x, scale, name=f"{name}-gemm", title=title,
            description=f"Best: {text.flops(best['flops_per_s'])} at {best['size']:,}. {caption}"),
        table, f"{name}-gemm",
    )  # fmt: skip


def _published() -> Section:
    columns = (
        Column("System", "system", numeric=False),
        Column("Device", "device", numeric=False),
        Column("Number format", "dtype", numeric=False),
        Column("Peak", "metric", numeric=False),
        Column("Rate", "value", text.flops),
        Column("Source", "source", numeric=False),
        Column("Remark", "note", numeric=False, missing="", wide=True),
    )
    note = "Published figures, not measured here."
    return Section("Published figures", (Table("Published peaks", columns, published.peaks(), "published", note),))
