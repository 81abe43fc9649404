"""Peak: what one device really reaches in a large matrix multiplication (axonn-sc24 VI-C)."""

import pandas as pd

from reports import charts, peaks, published, text
from reports.charts import Line, Scale
from reports.frame import SERIES, Frames, series_title
from reports.page import Block, Column, Facts, Figure, Figures, Page, Paragraph, Section, Table, nothing_measured
from reports.peaks import Peaks
from reports.provenance import failures, provenance
from reports.study import Study

TITLE = "Peak"
SUMMARY = "Matrix-multiplication rate of one device per size, against the advertised and the published empirical peak."
LEAD = (
    "Square matrices are multiplied on one device. The best rate is the empirical peak: what a program can hope for, "
    "which is less than what the vendor advertises. Sizes that did not fit in memory or time are named as skipped."
)
RUN = "reframe -c suites/peak.py --system local"
MOST_SECTIONS = 12


def build(mine: Frames, everything: Frames) -> Page:
    """The page; with no runs it says what to run."""
    groups = [rows for _, rows in mine.runs.groupby(SERIES, dropna=False, sort=True)][:MOST_SECTIONS]
    titles = [series_title(rows.iloc[0]) for rows in groups]
    sections = [
        _section(name, title, rows, mine, everything)
        for name, title, rows in zip(text.slugs(titles), titles, groups, strict=True)
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


def _headline(runs: pd.DataFrame) -> str:
    done = runs.dropna(subset="best_flops_per_s").sort_values("best_flops_per_s")
    if done.empty:
        return "nothing measured"
    best = done.iloc[-1]
    return f"best {text.flops(best['best_flops_per_s'])} in {best['dtype']} on {best['system'] or 'an unnamed system'}"


def _section(name: str, title: str, rows: pd.DataFrame, mine: Frames, everything: Frames) -> Section:
    first = rows.iloc[0]
    known = peaks.lookup(peaks.measured(everything.runs), first["system"], first["partition"], first["dtype"])
    table = by_size(mine, rows)
    blocks: list[Block] = []
    if table["flops_per_s"].notna().any():
        best = table.sort_values("flops_per_s", na_position="first").iloc[-1]
        peak = known.advertised
        share = text.percent(best["flops_per_s"] / peak.flops_per_s) if peak else None
        blocks.append(
            Facts(
                (
                    (text.flops(best["flops_per_s"]), "best size", f"matrices of {best['size']:,}"),
                    (share, "of the advertised peak", peak.source if peak else "no advertised peak is known"),
                    (text.count(best["jobs"]), "jobs", "median over them"),
                )
            )
        )
        blocks.append(Figures((_figure(name, table, known),)))
    else:
        blocks.append(Paragraph("Not measured: no job of this system ended well."))
    table["of_advertised"] = table["flops_per_s"] / (known.advertised.flops_per_s if known.advertised else float("nan"))
    columns = (
        Column("Size", "size", text.count),
        Column("Rate", "flops_per_s", text.flops),
        Column("Lowest job", "flops_per_s_low", text.flops),
        Column("Highest job", "flops_per_s_high", text.flops),
        Column("Of advertised peak", "of_advertised", text.percent, missing="not known"),
        Column("Time", "median_time_s", text.seconds),
        Column("Jobs", "jobs", text.count),
        Column("Skipped because", "skipped", numeric=False, missing="", wide=True),
    )
    if len(table):
        blocks.append(Table("Matrix multiplication by size", columns, table, f"{name}-sizes"))
    return Section(title, tuple(blocks), f"series-{name}")


def _best(runs: pd.DataFrame) -> Table:
    """The best rate of every job."""
    data = runs.dropna(subset="best_flops_per_s").sort_values(["system", "dtype", "end"])
    columns = (
        Column("System", "system", numeric=False, missing="unnamed"),
        Column("Partition", "partition", numeric=False, missing="none"),
        Column("Number format", "dtype", numeric=False),
        Column("Best rate", "best_flops_per_s", text.flops),
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
