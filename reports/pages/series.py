"""Parts that the pages of scaling series share: a section a series, the table of its points, the details of all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from reports import text
from reports.columns import columns_of, failures, provenance, samples_of
from reports.figures.compare import compared
from reports.figures.scaling import MeasuredSeries
from reports.frames import sides
from reports.frames.frame import Frames
from reports.frames.jobs import grouped
from reports.frames.overlaps import short
from reports.frames.points import runs_of
from reports.page import (
    MOST_SECTIONS,
    NOT_MEASURED,
    NOT_RECORDED,
    Block,
    Column,
    KeyFact,
    PageSection,
    Paragraph,
    Table,
    flops_column,
)


@dataclass(frozen=True, slots=True)
class ScalingKind:
    """Differences between weak and strong scaling.

    by: the columns that tell series apart; title: of a series, from its first point; draw: from its name and points
    to what stands before and after the table of its points; extra: columns that this table has more.
    """

    by: tuple[str, ...]
    title: Callable[["pd.Series[Any]"], str]
    draw: Callable[[str, pd.DataFrame, Frames], tuple[Sequence[Block], Sequence[Block]]]
    extra: tuple[Column, ...] = ()


def sections(kind: ScalingKind, table: pd.DataFrame, frames: Frames) -> list[PageSection]:
    """Make a section for each of the first series, one for all others, and the details; nothing where nothing ran."""
    groups = grouped(table, kind.by, kind.title)
    made = []
    for name, title, rows in grouped(table, kind.by, kind.title, MOST_SECTIONS):
        before, after = kind.draw(name, rows, frames)
        failed = failures(runs_of(frames.runs, rows, kind.by), name)
        crowded = [Paragraph(sides.no_core_left(words)) for words in dict.fromkeys(rows["crowded"]) if words]
        shown = (*crowded, *before, points_table(rows, name, kind), *failed, *after)
        made.append(PageSection(title, shown, f"series-{name}", one_of_many=True))
    if len(groups) > MOST_SECTIONS:
        rest = pd.concat([rows for *_, rows in groups[MOST_SECTIONS:]], ignore_index=True)
        note = f"Figures are drawn for the first {MOST_SECTIONS} series."
        table_of_rest = points_table(rest, "more_series", kind, note, with_series=True)
        failed = failures(runs_of(frames.runs, rest, kind.by), "more_series")
        made.append(PageSection("Further series", (table_of_rest, *failed)))
    return [*compared(table), *made, details(table, frames)] if groups else []


def points_table(
    rows: pd.DataFrame, name: str, kind: ScalingKind, note: str = "", *, with_series: bool = False
) -> Table:
    """List the points of one series, or of several with the columns that tell them apart."""
    data = spelled_out(rows)
    columns = columns_of(
        *(Column(key.title(), key, numeric=False, missing="") for key in (kind.by if with_series else ())),
        "ranks model grid hides batch_size network share time_s spread",
        flops_column("Sustained", "hardware_flops_per_s", rows),
        "hfu mfu of_empirical empirical_from efficiency",
        *_rates(rows),
        *kind.extra,
        "solution_s" if not kind.extra and rows["solution_s"].notna().any() else "",
        "gain_none" if rows["gain_none"].notna().any() else "",
        "commits" if (rows["commits"] > 1).any() else "",
        missing={"network": ""},
    )
    samples = samples_of(rows["images_per_s"].notna())
    said = f"{note} The batch is in {samples}; time, rates and what is saved are of medians over jobs.".strip()
    return Table("Measured points", columns, data, f"{name}-points", said, failed="only_failed")


def _rates(rows: pd.DataFrame) -> list[Column]:
    """Give the columns of what is trained on a second: tokens, images, or both where a table has both kinds."""
    of_images = rows["images_per_s"].notna()
    kinds = {"Tokens/s": ("tokens_per_s", not of_images.all()), "Images/s": ("images_per_s", of_images.any())}
    missing = "" if of_images.any() and not of_images.all() else NOT_MEASURED
    return [
        Column(title, key, lambda value: text.si(value, ""), missing=missing, figure="rate")
        for title, (key, shown) in kinds.items()
        if shown
    ]


def spelled_out(rows: pd.DataFrame) -> pd.DataFrame:
    """Add texts for a table: hides (the overlap), spread, share (of the jobs) and whether all failed."""
    return rows.assign(
        only_failed=rows["jobs"] == 0,
        hides=[
            f"{short(overlap)} ({tuning})" if tuning else short(overlap) or "not recorded"
            for overlap, tuning in zip(rows["overlap"], rows["tuning"], strict=True)
        ],
        spread=[
            f"{text.significant(low)} to {text.significant(high)}" if jobs > 1 else "one job" if jobs else ""
            for low, high, jobs in zip(rows["time_s_low"], rows["time_s_high"], rows["jobs"], strict=True)
        ],
        share=[
            f"{jobs} of {jobs + failed}" if failed else str(jobs)
            for jobs, failed in zip(rows["jobs"], rows["failed"], strict=True)
        ],
    )


def of_jobs(point: "pd.Series[Any]") -> str:
    """Say how many jobs a point is of, those that failed named."""
    done, failed = int(point["jobs"]), int(point["failed"])
    return f"{done} of {done + failed} jobs, {failed} failed" if failed else text.plural(done, "job")


def of_size(series: MeasuredSeries) -> tuple[KeyFact, KeyFact, KeyFact]:
    largest = series.line.iloc[-1]
    layouts = int(((series.points["ranks"] == largest["ranks"]) & (series.points["jobs"] > 0)).sum())
    of_several = f", fastest of {layouts} that ran" if layouts > 1 else ""
    return (
        (f"{largest['ranks']:,}", "devices", f"{largest['model']} on grid {largest['grid']}{of_several}"),
        (text.seconds(largest["time_s"]), "per batch", f"median of {of_jobs(largest)}"),
        (text.flops(largest["hardware_flops_per_s"]), "sustained", "recomputation counted"),
    )


def of_peak(series: MeasuredSeries) -> tuple[KeyFact, KeyFact, KeyFact]:
    """HFU, MFU and the share of the empirical peak of the largest point."""
    hfu, mfu, best = (_share(series, key) for key in ("hfu", "mfu", "of_empirical"))
    remark = "of the advertised peak" if hfu else "no advertised peak is known"
    of_best = series.line.iloc[-1]["empirical_from"] if best else "no empirical peak is known"
    return (hfu, "HFU", remark), (mfu, "MFU", remark), (best, "of empirical peak", of_best)


def of_efficiency(series: MeasuredSeries) -> KeyFact:
    if len(series.line) < 2:
        return None, "efficiency", "one device count only"
    smallest = text.plural(int(series.line["ranks"].min()), "device")
    return _share(series, "efficiency"), "efficiency", f"against {smallest}"


def _share(series: MeasuredSeries, key: str) -> str | None:
    value = series.line.iloc[-1][key]
    write = text.of_empirical if key == "of_empirical" else text.percent
    return write(value) if value == value else None


def details(table: pd.DataFrame, frames: Frames) -> PageSection:
    """Make time, memory and collectives of every point, and where every job comes from."""
    newest = spelled_out(table[table["newest"] >= 0])
    calls = frames.collectives.merge(
        newest[["newest", "system", "ranks", "model", "grid", "hides"]], left_on="run", right_on="newest"
    ).sort_values(["system", "ranks", "model", "grid", "axis", "kind"])
    which = "system ranks model grid hides"
    keys = "kind axis calls bytes flight_s exposed_s hidden_s"
    columns = columns_of(which, keys, kind="Collective", exposed_s="Exposed", missing={"exposed_s": NOT_RECORDED})
    collectives = Table(
        "Collectives of one iteration",
        columns,
        calls,
        "collectives",
        "On rank 0, newest job of each point; bytes are those of the input buffers.",
    )
    keys = "compute_s processors_s collectives_s share_hidden bound_s bound_by step_by_bound shared"
    columns = columns_of(which, keys, "memory_max memory_min")
    note = "Medians over jobs; times are of one iteration on rank 0."
    budget = Table("Time and memory", columns, newest, "budget", note)
    return PageSection("Details", (budget, collectives, provenance(frames.runs)))


def published_gains(table: pd.DataFrame) -> Table:
    """Say what the papers say that an optimisation, or a framework, gains; of published.gains() some rows."""
    saved = [
        f"{100 * low:g} to {100 * high:g} %" if high == high else f"{100 * low:g} %"
        for low, high in zip(table["value"], table["highest"], strict=True)
    ]
    columns = columns_of(
        "source system model devices gained over",
        Column("Time saved", "saved", numeric=False),
        "note",
        source="Source",
        devices="Devices",
    )
    note = "Published figures, not measured here: the part of the time per batch that is saved."
    return Table("Published gains", columns, table.assign(saved=saved), "published-gains", note)
