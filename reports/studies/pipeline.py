"""Pipeline: what each schedule of its stages takes, and how long they wait (axonn-ipdps22 III and V-A)."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import pandas as pd

from reports import pipeline_figures, published, text
from reports.bubbles import bubbles
from reports.columns import columns_of, first
from reports.frame import SETTING, Frames, series_title
from reports.methods import INTERVALS
from reports.page import MOST_SECTIONS, Block, Column, Facts, Figures, Page, Paragraph, Section, Table, nothing_measured
from reports.points import runs_of
from reports.provenance import failures, provenance
from reports.schedules import BASE, Compared, compared
from reports.series_page import published_gains
from reports.study import Study

TITLE = "Pipeline"
SUMMARY = "What each schedule of a pipeline's stages takes, how long they wait, and a step of all stages as a picture."
LEAD = (
    "The same training with each schedule, in turns in the same processes: gpipe (all forwards, then all backwards), "
    "1f1b (one of each in turns), interleaved (several parts of the network a stage), zero-bubble (weight gradients "
    "are tasks of their own), message-driven (whatever message has come, Algorithm 2 of axonn-ipdps22) and "
    "message-driven-zb (weight gradients while none has). What --schedule auto takes is marked. Ratios are paired by "
    "round. Beside what was measured stands what a simulation of all stages gives, whose tasks take their measured "
    "mean and whose messages take no time."
)
RUN = "reframe -c suites/pipeline.py --system local -r"
NO_BASE = "no run of 1f1b"


def build(mine: Frames, everything: Frames) -> Page:
    found = compared(mine)
    drawn = sorted(found, key=lambda one: (-len(one.table), -one.stages))[:MOST_SECTIONS]
    sections = [_overview(found, len(drawn)) if found else nothing_measured(RUN)]
    if (judged := bubbles(found)) is not None:
        sections.append(Section("Bubbles beside the formula", (judged,)))
    sections += [_section(name, title, one) for name, title, one in text.titled(drawn, _title)]
    if found:
        shown = pd.concat([one.runs for one in drawn])
        rest = mine.runs.drop(runs_of(mine.runs, shown, [*SETTING, "disturbed"]).index)
        sections.append(Section("Details", (*failures(rest, "further"), provenance(mine.runs))))
    sections.append(Section("Published figures", (published_gains(published.gains("pipeline")),)))
    return Page(TITLE, LEAD, sections, _headline(found), empty=not found)


STUDY = Study("pipeline", TITLE, SUMMARY, 3.5, lambda runs: runs["kind"] == "pipeline", build)


def _title(one: Compared) -> str:
    first = one.first
    micro = f"{text.count(one.micro_batches)} micro-batches" if one.micro_batches == one.micro_batches else ""
    parts = [text.plural(one.stages, "stage"), micro, first["disturbed"] or "nothing slowed down", series_title(first)]
    return text.clean(f"{first['model']} on {first['grid']}, {', '.join(part for part in parts if part)}", 160)


def _headline(found: Sequence[Compared]) -> str:
    best = sorted(row["faster"] for one in found if (row := one.best()) is not None)
    if not best:
        return "no schedule compared"
    settings = text.plural(len(best), "setting")
    return f"the fastest schedule is {text.times(median(best))} as fast as 1f1b, median of {settings}"


def _overview(found: Sequence[Compared], drawn: int) -> Section:
    rows = [_layout(one) for one in found]
    data = pd.DataFrame(rows)
    columns = columns_of(
        first(data),
        "model grid",
        Column("Micro-batches", "micro_batches", text.count),
        Column("Slowed down", "disturbed", numeric=False, missing="nothing"),
        Column("Fastest", "label", numeric=False, missing=NO_BASE),
        _ratio(), _idle(), _idle("Simulated", "simulated_idle"),
        Column("1F1B idle", "base_idle", text.percent, figure="idle_share"),
        "rounds ranks system network",
    )  # fmt: skip
    note = f"Of each setting the schedule with the smallest ratio to {BASE}; the least of several is partly chance."
    if drawn < len(found):
        note += f" The {drawn} with the most schedules are drawn below."
    return Section("All settings", (Table("Fastest schedules", columns, data, "settings", note, "only_failed"),))


def _layout(one: Compared) -> dict[Any, Any]:
    first, best = one.first, one.best()
    row = {key: first[key] for key in ("system", "model", "ranks", "grid", "network", "disturbed")}
    base = one.table[one.table["schedule"] == BASE]
    row |= {
        "only_failed": one.table.empty,
        "micro_batches": one.micro_batches,
        "base_idle": base["idle"].iloc[0] if len(base) else float("nan"),
    }
    names = ("label", "ratio", "ratio_low", "ratio_high", "idle", "simulated_idle", "rounds")
    return row | {name: ("" if name == "label" else float("nan")) if best is None else best[name] for name in names}


def _ratio(title: str = "Ratio to 1f1b", missing: str = NO_BASE) -> Column:
    ends = ("ratio_low", "ratio_high")
    return Column(title, "ratio", text.ratio, missing=missing, figure="ratio_over_jobs", spread=ends, level=1.0)


def _idle(title: str = "Idle", key: str = "idle") -> Column:
    return Column(title, key, text.percent, figure="idle_share")


def _section(name: str, title: str, one: Compared) -> Section:
    if one.table.empty:
        blocks: tuple[Block, ...] = (Paragraph("Not measured: no job of this setting ended well."),)
    else:
        drawn = (pipeline_figures.idle(name, one), *pipeline_figures.timeline(name, one))
        blocks = (_facts(one), Figures(drawn, wide=True), _table(name, one))
    return Section(title, (*blocks, *failures(one.runs, name)), f"series-{name}", one_of_many=True)


def _facts(one: Compared) -> Facts:
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


def _table(name: str, one: Compared) -> Table:
    data = one.table.assign(
        spread=[
            f"{text.significant(low)} to {text.significant(high)}"
            for low, high in zip(one.table["time_s_low"], one.table["time_s_high"], strict=True)
        ]
    )
    columns = columns_of(
        Column("Schedule", "label", numeric=False),
        "time_s spread",
        _ratio(missing=""),
        _idle(), _idle("least", "idle_least"), _idle("most", "idle_most"), _idle("Simulated", "simulated_idle"),
        Column("Step, simulated", "simulated_s", text.seconds),
        Column("Held", "held", text.count),
        Column("Pending", "pending", text.count),
        Column("Peak memory", "peak_bytes", text.memory, missing="not known"),
        "jobs rounds",
        time_s="Step", spread="Rounds from, to, s",
    )  # fmt: skip
    note = (
        "Medians over jobs. Idle: mean, least and most of the stages. Held and pending: on the stage that has most, "
        "the micro-batches whose backward was still to come, and those of whose backward only the weight gradients "
        f"were; of interleaved each part counts. {INTERVALS}"
    )
    return Table("Schedules", columns, data, f"{name}-details", note)
