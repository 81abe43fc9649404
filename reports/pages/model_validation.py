"""Performance model: how far its predictions are from measured and from published times."""

from dataclasses import replace
from typing import Any

import pandas as pd

from engine.result import metrics
from reports import text
from reports.columns import columns_of, failures, provenance
from reports.figures import model_grids, model_published, trainers
from reports.frames.frame import SERIES, Frames, series_title
from reports.frames.jobs import grouped
from reports.frames.points import points
from reports.frames.predictions import grid_rows, published_rows
from reports.frames.sides import GRID_COLUMNS
from reports.page import MOST_SECTIONS, Column, Page, PageSection, Paragraph, Table
from reports.pages.study import Study, trainings_of
from reports.read.load import Validated
from reports.words import NOTES, STUDIES

GRIDS = "grids"


def build(mine: Frames, everything: Frames) -> Page:
    """Make the page; with neither a validation nor runs it says what to run."""
    validated = everything.predictions.validation
    measured = _measured(mine)
    sections = [*(_validated(validated) if validated else ()), *measured]
    if not sections:
        return Page(empty=True)
    if validated is None:
        words = f"Measured grids only: {STUDIES['model_validation'].run[1]} sets the predictions beside them."
        sections.insert(0, PageSection("Not predicted yet", (Paragraph(words),)))
    remark = "predicted and measured" if validated else ""
    return Page(sections, _headline(validated, mine), remark=remark)


_TRAININGS = trainings_of("model_validation")
STUDY = Study("model_validation", 12, lambda runs: _TRAININGS(runs) | (runs["kind"] == GRIDS), build)


def _headline(validated: Validated | None, mine: Frames) -> str:
    said = []
    if validated is not None:
        rows = published_rows(validated.result)
        rest = rows[~rows["fitted"].astype(bool)].dropna(subset=["error", "baseline_error"])
        if not rest.empty:
            ours, baseline = model_published.mean_errors(rest)
            said.append(f"{text.percent(ours)} off published times, {text.percent(baseline)} by the baseline")
        grids = [grid_rows(job) for job in validated.result.jobs]
        errors = [error for rows in grids for error in rows.loc[~rows["fitted"].astype(bool), "error"].dropna()]
        if errors:
            said.append(f"{text.percent(metrics.median_absolute_error(errors))} off measured grids")
    if not said:
        ran = mine.runs[mine.runs["status"] == "ok"]
        return f"{text.plural(ran['grid'].nunique(), 'grid')} measured, nothing predicted"
    return "; ".join(said)


def _validated(validated: Validated) -> list[PageSection]:
    jobs = validated.result.jobs
    titled = text.titled(jobs[:MOST_SECTIONS], lambda job: text.clean(f"{job.name} on {job.system}", 120))
    sections = [PageSection("All measured grids", model_grids.over_all(jobs))]
    sections += [
        PageSection(title, model_grids.blocks(name, job), f"job-{name}", one_of_many=True)
        for name, title, job in titled
    ]
    rest = [
        PageSection("Published times", model_published.blocks(validated.result)),
        PageSection("Trainers' tables", trainers.blocks(validated.result)),
        PageSection("Effects", model_published.effects(validated.result)),
        PageSection("Products alone", model_published.products(validated.result)),
    ]
    sections = [section for section in (*sections, *rest) if section.blocks]
    said = f"Written {text.moment(validated.written)}; read from {text.clean(validated.source)}."
    if len(jobs) > MOST_SECTIONS:
        said += f" The first {MOST_SECTIONS} of {len(jobs)} jobs are shown."
    return [*sections, PageSection("Where the predictions are from", (Paragraph(said),))]


def _measured(mine: Frames) -> list[PageSection]:
    """List the grids that the suite has timed, the fastest first; nothing where none was."""
    if mine.runs.empty:
        return []
    trained = mine.runs[mine.runs["kind"] == "train"]
    titled = grouped(points(trained), [*SERIES, "model", "ranks", "batch_size"], _title, MOST_SECTIONS)
    tables = [_table(f"measured-{name}", title, rows) for name, title, rows in titled]
    tables += _in_turns(mine)
    return [PageSection("Measured grids", [*tables, *failures(mine.runs, "measured"), provenance(mine.runs)])]


def _title(row: "pd.Series[Any]") -> str:
    devices = text.plural(int(row["ranks"]), "device")
    return text.clean(f"{row['model']} on {devices} of {series_title(row)}", 120)


def _table(name: str, title: str, rows: pd.DataFrame) -> Table:
    data = rows.assign(lost=rows["jobs"] == 0).sort_values("time_s", kind="stable", na_position="last")
    (time,) = columns_of("time_s")
    time = replace(time, spread=("time_s_low", "time_s_high"))
    columns = columns_of("grid", time, "collectives_s compute_s jobs memory_max")
    note = "The fastest first; medians over jobs, in brackets the fastest and the slowest job."
    return Table(title, columns, data, name, note, failed="lost")


def _in_turns(mine: Frames) -> list[Table]:
    """Make a table of each contest of grids that ended well, the newest first."""
    runs, every = mine.runs, mine.sides.table
    ended = runs[(runs["kind"] == GRIDS) & (runs["status"] == "ok")].sort_values("end", ascending=False)
    columns = columns_of(
        "grid micro_batch",
        Column("Schedule", "schedule", numeric=False, missing="one stage"),
        "time_s ratio",
        Column("Predicted", "predicted_s", text.seconds, missing="not asked for"),
        missing={"ratio": "the first"},
    )
    found = []
    for name, title, rows in grouped(ended.assign(run=ended.index), ["run"], _title_of_grids):
        data = every[every["run"] == rows.iloc[0]["run"]].sort_values("time_s", kind="stable")
        data = data[["run", *GRID_COLUMNS, "time_s"]]
        found.append(Table(title, columns, data, f"turns-{name}", NOTES["grids"]))
    return found


def _title_of_grids(row: "pd.Series[Any]") -> str:
    where = f"{text.plural(int(row['ranks']), 'device')} of {row['system']}"
    return text.clean(f"In turns: {row['model']} on {where}", 120)
