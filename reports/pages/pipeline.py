"""Pipeline: what each schedule of its stages takes, and how long they wait (axonn-ipdps22 III and V-A)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pandas as pd

from engine.grid import Grid
from engine.result.gate import NOTHING_KNOWN
from engine.result.judges import bubble
from engine.result.judges.bubble import Bubble
from engine.result.metrics import Paired
from engine.result.schema.contest import ScheduleSide
from reports import text
from reports.columns import columns_of, failures, first, provenance
from reports.figures import stages
from reports.frames.frame import SETTING, Frames, series_title
from reports.frames.points import runs_of
from reports.frames.sides import POOLED, SCHEDULE_COLUMNS, Pool, Sides, ranges, ratio_column, with_speed_ups
from reports.page import (
    MOST_SECTIONS,
    NOT_MEASURED,
    Block,
    Column,
    Facts,
    Figure,
    Figures,
    Page,
    PageSection,
    Paragraph,
    Table,
    nothing_measured,
)
from reports.pages.series import published_gains
from reports.pages.study import Study
from reports.plots.canvas import WIDE
from reports.plots.rows import Bars, Row, stacked
from reports.plots.timeline import MOST_STAGES, DrawnSchedule, describe_schedules, draw_schedules, list_tasks
from reports.read import published
from reports.text import positive
from reports.words import NOTES, STUDIES

NO_BASE = "no run of 1f1b"
BASE = "1f1b"
_MEDIANS = ("time_s", *SCHEDULE_COLUMNS)
_BY = [*SETTING, "disturbed", "tuning"]
_BUT_GRID = [key for key in _BY if key != "grid"]


@dataclass(frozen=True, slots=True)
class Schedules:
    """One setting of contests of schedules."""

    first: "pd.Series[Any]"
    """A job of it."""
    runs: pd.DataFrame
    table: pd.DataFrame
    """A row a schedule, BASE first, none where no job ended well: its label for a person and what Pool.row() has."""
    records: tuple[tuple[ScheduleSide, ...], ...]
    """Records of each row's jobs, the newest last."""

    @property
    def stages(self) -> int:
        """Count the stages."""
        return self._grid.stages

    @property
    def micro_batches(self) -> float:
        """Count those of a step on each rank; NaN where the jobs didn't record them."""
        batch, micro = (positive(self.first[key]) for key in ("batch_size", "micro_batch"))
        return batch / (micro * self._grid.batch_split)

    @property
    def _grid(self) -> Grid:
        return Grid.parse(self.first["grid"] or "1x1x1x1")

    def best(self) -> "pd.Series[Any] | None":
        """Return the schedule that takes the least of BASE's time; None where nothing was compared with it."""
        others = self.table[self.table["ratio"].notna()]
        return None if others.empty else others.sort_values("ratio").iloc[0]


def compared(frames: Frames) -> list[Schedules]:
    """Return every setting of the contests among the runs, in the order of system, model, devices and grid."""
    runs = frames.runs[frames.runs["kind"] == "pipeline"].sort_values("end")
    groups = runs.groupby(_BY, dropna=False)
    return [_compared(mine, frames.sides) for _, mine in groups]


def _compared(runs: pd.DataFrame, every: Sides) -> Schedules:
    """Make the setting of these jobs, oldest first."""
    pool = Pool.of(runs, every, "schedule")
    records = {
        name: tuple(side for at in mine.index if isinstance(side := every.records[at], ScheduleSide))
        for name, mine in pool.by_name.items()
    }
    listed = [
        {"schedule": name, "label": f"{name} (auto)" if records[name][-1].auto else name}
        | pool.row(name, _MEDIANS, BASE)
        for name in pool.by_name
    ]
    table = pd.DataFrame(listed, columns=["schedule", "label", *_MEDIANS, *POOLED])
    with_speed_ups(table)
    return Schedules(runs.iloc[-1], runs, table, tuple(records.values()))


def build(mine: Frames, everything: Frames) -> Page:
    found = compared(mine)
    drawn = sorted(found, key=lambda one: (-len(one.table), -one.stages))[:MOST_SECTIONS]
    sections = [_overview(found, len(drawn)) if found else nothing_measured(*STUDIES["pipeline"].run)]
    if (judged := bubbles(found)) is not None:
        sections.append(PageSection("Bubbles beside the formula", (judged,)))
    sections += _over_stages(found)
    sections += [_section(name, title, one) for name, title, one in text.titled(drawn, _title)]
    if found:
        shown = pd.concat([one.runs for one in drawn])
        rest = mine.runs.drop(runs_of(mine.runs, shown, _BY).index)
        sections.append(PageSection("Details", (*failures(rest, "further"), provenance(mine.runs))))
    sections.append(PageSection("Published figures", (published_gains(published.gains("pipeline")),)))
    return Page(sections, _headline(found), empty=not found)


STUDY = Study("pipeline", 3.5, lambda runs: runs["kind"] == "pipeline", build)


def _title(one: Schedules) -> str:
    first = one.first
    micro = f"{text.count(one.micro_batches)} micro-batches" if one.micro_batches == one.micro_batches else ""
    parts = [text.plural(one.stages, "stage"), micro, first["disturbed"] or "nothing slowed down", first["tuning"]]
    parts.append(series_title(first))
    return text.clean(f"{first['model']} on {first['grid']}, {', '.join(part for part in parts if part)}", 160)


def _headline(found: Sequence[Schedules]) -> str:
    best = sorted(row["faster"] for one in found if (row := one.best()) is not None)
    if not best:
        return "no schedule compared"
    settings = text.plural(len(best), "setting")
    return f"the fastest schedule is {text.times(median(best))} as fast as 1f1b, median of {settings}"


def _overview(found: Sequence[Schedules], drawn: int) -> PageSection:
    rows = [_layout(one) for one in found]
    data = pd.DataFrame(rows)
    columns = columns_of(
        first(data),
        "model grid micro_batches disturbed",
        *_tuning(data),
        "label",
        ratio_column("Ratio to 1f1b", missing=NO_BASE),
        "idle simulated_idle base_idle rounds ranks system network",
        missing={"label": NO_BASE},
        label="Fastest",
    )
    note = f"Of each setting the schedule with the smallest ratio to {BASE}; the least of several is partly chance."
    if drawn < len(found):
        note += f" The {drawn} with the most schedules are drawn below."
    return PageSection("All settings", (Table("Fastest schedules", columns, data, "settings", note, "only_failed"),))


def _tuning(data: pd.DataFrame) -> list[Column]:
    """Give the column of further options where a job had any."""
    return [Column("Options", "tuning", numeric=False, missing="")] if data["tuning"].any() else []


def _layout(one: Schedules) -> dict[Any, Any]:
    first, best = one.first, one.best()
    row = {key: first[key] for key in ("system", "model", "ranks", "grid", "network", "disturbed", "tuning")}
    base = one.table[one.table["schedule"] == BASE]
    row |= {
        "only_failed": one.table.empty,
        "micro_batches": one.micro_batches,
        "base_idle": base["idle"].iloc[0] if len(base) else float("nan"),
    }
    names = ("label", "ratio", "ratio_low", "ratio_high", "idle", "simulated_idle", "rounds")
    return row | {name: ("" if name == "label" else float("nan")) if best is None else best[name] for name in names}


def _over_stages(found: Sequence[Schedules]) -> list[PageSection]:
    """Draw time over stages where several numbers of them had as many devices (axonn-ipdps22 Fig. 5)."""
    rows = [
        {key: one.first[key] for key in _BY}
        | {"stages": one.stages, "schedule": row["schedule"], "time_s": row["time_s"]}
        | {key: row[key] for key in ("jobs", "rounds")}
        | stages.time_in_stages(records)
        for one in found
        for (_, row), records in zip(one.table.iterrows(), one.records, strict=True)
    ]
    groups = pd.DataFrame(rows, columns=[*_BY, *(key for key in stages.COLUMNS if key not in _BY)])
    kept = [stages.fastest_grids(mine, BASE) for _, mine in groups.groupby(_BUT_GRID, dropna=False)]
    drawn = sorted((mine for mine in kept if len(mine)), key=lambda mine: -mine["stages"].nunique())[:MOST_SECTIONS]
    return [
        PageSection(title, (Figures((stages.over_stages(name, mine),)), stages.table(name, mine)), f"stages-{name}")
        for name, title, mine in text.titled(drawn, _title_over_stages)
    ]


def _title_over_stages(mine: pd.DataFrame) -> str:
    first = mine.iloc[0]
    devices = text.plural(int(first["ranks"]), "device")
    parts = (f"{first['model']} on {devices}", first["disturbed"], first["tuning"], series_title(first))
    return text.clean(f"Time over stages: {', '.join(filter(None, parts))}", 160)


def _section(name: str, title: str, one: Schedules) -> PageSection:
    if one.table.empty:
        blocks: tuple[Block, ...] = (Paragraph("Not measured: no job of this setting ended well."),)
    else:
        drawn = (idle_figure(name, one), *timeline(name, one))
        blocks = (_facts(one), Figures(drawn, wide=True), _table(name, one))
    return PageSection(title, (*blocks, *failures(one.runs, name)), f"series-{name}", one_of_many=True)


def _facts(one: Schedules) -> Facts:
    best, table = one.best(), one.table
    least = table.sort_values("idle").iloc[0]
    off = (table["idle"] - table["simulated_idle"]).abs().median()
    idle = (text.percent(least["idle"]), "least idle", f"{least['label']}, mean of {one.stages} stages")
    simulated = (f"{100 * off:.1f} points", "off the simulation", "idle share, median over schedules")
    if best is None:
        return Facts(((None, "as fast as 1f1b", NO_BASE), idle, simulated))
    span = f"{text.times(best['faster_low'])} to {text.times(best['faster_high'])}, "
    known = best["faster_low"] == best["faster_low"]
    remark = f"{best['label']}, {span if known else ''}{text.plural(int(best['rounds']), 'paired round')}"
    step = (text.seconds(best["time_s"]), "a step with it", f"{text.plural(int(best['jobs']), 'job')}")
    return Facts(((text.times(best["faster"]), "as fast as 1f1b", remark), step, idle, simulated))


def _table(name: str, one: Schedules) -> Table:
    data = one.table.assign(spread=ranges(one.table, NOT_MEASURED))
    columns = columns_of(
        "label time_s spread",
        ratio_column("Ratio to 1f1b", missing=""),
        "idle idle_least idle_most simulated_idle simulated_s held pending peak_bytes jobs rounds",
        time_s="Step",
        spread="Rounds from, to, s",
    )
    note = (
        "Medians over jobs. Idle: mean, least and most of the stages. Held and pending: on the stage that has most, "
        "the micro-batches whose backward was still to come, and those of whose backward only the weight gradients "
        f"were; of interleaved each part counts. {NOTES['intervals']}"
    )
    return Table("Schedules", columns, data, f"{name}-details", note)


def idle_figure(name: str, one: Schedules) -> Figure:
    """Draw the idle share of each schedule, measured and simulated."""
    table = one.table
    rows = [
        Row(
            row["label"],
            100 * row["idle_least"],
            100 * row["idle_most"],
            100 * row["simulated_idle"],
            notes=(text.seconds(row["time_s"]), text.ratio(row["ratio"]) if row["ratio"] == row["ratio"] else ""),
            pale=() if row["ratio_low"] > 1 or row["ratio_high"] < 1 else (1,),
        )
        for _, row in table.iterrows()
    ]
    bars = [Bars("idle, mean of the stages", (100 * table["idle"]).tolist(), "sky")]
    drawing = stacked(
        bars, rows, "percent of a step", columns=["step", "by that\nof 1f1b"], mark="simulated", width=WIDE
    )
    caption = (
        "Medians over jobs. Whiskers go from the stage that waits least to the one that waits most. The simulation has "
        "each stage's measured mean times, and messages that take none. A ratio in grey may be chance."
    )
    said = [
        f"{row['label']}: {text.percent(row['idle'])} idle, {text.percent(row['simulated_idle'])} simulated"
        for _, row in table.iterrows()
    ]
    csv = table[["schedule", "time_s", "ratio", "idle", "idle_least", "idle_most", "simulated_idle"]]
    return Figure("Idle share by schedule", caption, drawing, csv, f"{name}-idle", f"{'. '.join(said)}. {caption}")


def timeline(name: str, one: Schedules) -> list[Figure]:
    """Draw a step of each schedule that has its tasks, of the newest job; nothing where none has."""
    steps = []
    for schedule, records in zip(one.table["label"], one.records, strict=True):
        newest = records[-1]
        step_s = math.nan if newest.drawn_s is None else newest.drawn_s
        remark = f"{text.seconds(step_s)}, {text.percent(newest.idle_share)} idle on average"
        steps.append(DrawnSchedule(schedule, remark, step_s, tuple(stage.tasks for stage in newest.stages)))
    drawing = draw_schedules(steps)
    if drawing is None:
        return []
    caption = (
        "The step with the median time of each, in the newest job, on the first rank of every stage. A task has its "
        "micro-batch's number, with a dash where it is of a stage's second part of the network. Stages begin a step "
        "together; it ends at the upright line, after the optimizer."
    )
    if one.stages > MOST_STAGES:
        caption += f" {MOST_STAGES} of {one.stages} stages are drawn."
    data, said = list_tasks(steps), describe_schedules(steps)
    return [Figure("One step of all stages", caption, drawing, data, f"{name}-timeline", said)]


def bubbles(found: Sequence[Schedules]) -> Table | None:
    """Judge the schedules of all settings in which nothing was slowed down; None if there are none."""
    rows = []
    for one in found:
        if one.first["disturbed"]:
            continue
        for (_, row), records in zip(one.table.iterrows(), one.records, strict=True):
            if (judged := bubble.judge(records, one.micro_batches)) is not None:
                setting = {key: one.first[key] for key in ("system", "model", "grid", "ranks", "tuning")}
                counts = {key: row[key] for key in ("schedule", "jobs", "rounds")}
                rows.append(setting | counts | {"micro_batches": one.micro_batches} | _judged(judged))
    if not rows:
        return None
    data = pd.DataFrame(rows)
    columns = columns_of(
        "schedule micro_batches formula_bubble bubble bubble_off stages_differ",
        Column("Outcome", "outcome", numeric=False, bad=frozenset({"fail"})),
        "why jobs rounds model grid",
        *_tuning(data),
        "system",
        missing={"why": ""},
    )
    return Table("Bubbles", columns, data, "bubbles", NOTES["bubbles"])


def _judged(one: Bubble) -> dict[str, Any]:
    row = {"formula_bubble": one.expected, "stages_differ": one.uneven, "outcome": one.outcome, "why": one.why}
    return row | _spread("bubble", one.measured) | _spread("bubble_off", one.off)


def _spread(key: str, of: Paired) -> dict[str, float]:
    ends = (math.nan, math.nan) if of.interval == NOTHING_KNOWN else of.interval
    return dict(zip((key, f"{key}_low", f"{key}_high"), (of.ratio, *ends), strict=True))
