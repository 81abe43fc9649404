"""The first page: the studies, what was read, what had to be left out and why."""

from dataclasses import dataclass

import pandas as pd

from reports import text
from reports.load import Loaded
from reports.page import Block, Column, Commands, Facts, Page, Paragraph, Section, Table
from reports.study import AnyStudy, CheckStudy, ContestStudy

LEAD = (
    "How fast large networks train here with 4D parallelism, and how that compares with what was published. Every "
    "figure can be traced to the result of a run."
)
FIRST_STEPS = ("reframe -c suites/weak_scaling.py --system local", "python -m reports build --out site/")


@dataclass(frozen=True, slots=True)
class Card:
    """A study on the first page. empty: whether it has nothing to show yet."""

    name: str
    title: str
    summary: str
    headline: str
    remark: str
    empty: bool


def card(study: AnyStudy, page: Page, runs: pd.DataFrame) -> Card:
    """The card of a study's page. runs: those of the study, or its contests or checks."""
    failed = int((runs["status"] == "failed").sum())
    latest = runs["end"].max()
    noun = "contest" if isinstance(study, ContestStudy) else "check" if isinstance(study, CheckStudy) else "job"
    remark = page.remark or text.plural(len(runs), noun)
    if failed:
        remark += f", {failed:,} failed"
    if pd.notna(latest) and not page.remark:
        remark += f", last on {latest:%Y-%m-%d}"
    headline = page.remark or "Not measured yet" if page.empty else page.headline[0].upper() + page.headline[1:]
    if page.empty:
        remark = "The page says what to run"
    return Card(study.name, study.title, study.summary, headline, remark, page.empty)


def index(loaded: Loaded, others: pd.DataFrame) -> Page:
    """The first page. others: the runs that no study shows."""
    sections = []
    if not loaded.statuses:
        where = (
            f"No result was found in {', '.join(loaded.folders)}."
            if loaded.folders
            else "There is no folder of results here."
        )
        blocks: tuple[Block, ...] = (
            Paragraph(f"{where} Measure something, then build this report:"),
            Commands(FIRST_STEPS),
        )
        sections.append(Section("Nothing measured yet", blocks, "empty"))
    sections.append(_read(loaded))
    if loaded.skipped:
        sections.append(_skipped(loaded))
    if len(others):
        sections.append(_others(others))
    return Page("Training performance", LEAD, tuple(sections), "", empty=not loaded.statuses)


def _read(loaded: Loaded) -> Section:
    failed = loaded.statuses.count("failed")
    facts = (
        (f"{len(loaded.statuses):,}", "results", f"from {text.plural(loaded.files, 'file')}"),
        (f"{failed:,}", "of failed jobs", "shown with their reason"),
        (f"{len(loaded.skipped):,}", "skipped", "listed below" if loaded.skipped else "nothing was unreadable"),
        (f"{loaded.duplicates:,}", "found twice", "counted once"),
        (f"{loaded.without_record:,}", "without a result", "dry runs and tests that wrote none"),
        (f"{len(loaded.plans) + len(loaded.validations):,}", "plans and validations", "predicted, not measured"),
    )
    return Section(
        "What was read", (Paragraph(f"Folders: {', '.join(loaded.folders) or 'none'}."), Facts(facts)), "read"
    )


def _skipped(loaded: Loaded) -> Section:
    data = pd.DataFrame({"source": [s.source for s in loaded.skipped], "reason": [s.reason for s in loaded.skipped]})
    columns = (
        Column("File", "source", text.clean, numeric=False, wide=True),
        Column("Reason", "reason", text.clean, numeric=False, wide=True),
    )
    note = "These are not in the report."
    return Section("Skipped", (Table("Files and test cases left out", columns, data, "skipped", note),), "skipped")


def _others(others: pd.DataFrame) -> Section:
    columns = (
        Column("End", "end", text.moment, missing="unknown"),
        Column("Study", "study", numeric=False, missing="none"),
        Column("Kind", "kind", numeric=False),
        Column("Status", "status", numeric=False),
        Column("Model", "model", numeric=False, missing="none"),
        Column("Devices", "ranks", text.count),
        Column("Grid", "grid", numeric=False, missing="none"),
        Column("Time per batch", "time_s", text.seconds, figure="time_per_iteration"),
        Column("Overlap", "overlap", numeric=False, missing="none"),
        Column("Sustained", "hardware_flops_per_s", text.flops, figure="rate"),
        Column("Result", "source", text.clean, numeric=False, wide=True),
    )
    note = (
        "Runs whose label `study` names none of the studies above, such as ones started by hand; and those of earlier "
        "versions that measured one overlap a job, whose gains are not paired and not shown."
    )
    data = others.assign(failed=others["status"] != "ok").sort_values("end", ascending=False)
    return Section("Other runs", (Table("Runs of no study", columns, data, "other", note, failed="failed"),), "other")
