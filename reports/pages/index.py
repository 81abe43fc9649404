"""The first page: the verdicts, the studies, what was read, what had to be left out and why."""

from dataclasses import dataclass

import pandas as pd

from reports import text
from reports.columns import columns_of
from reports.page import FEW, Block, Column, Commands, Facts, Page, PageSection, Paragraph, Table
from reports.pages.study import Study, badly_bound
from reports.read.load import Loaded

LEAD = (
    "What the papers on 4D parallelism claim, figure by figure, and whether measurements here agree. Each figure leads "
    "to its published and measured points on one plot, and each point to the result of a run."
)
TITLE = "Does it reproduce?"
NOUNS = {"runs": "job", "contests": "contest", "checks": "check"}
FIRST_STEPS = ("reframe -c suites/weak_scaling.py --system local", "python -m reports build --out site/")


@dataclass(frozen=True, slots=True)
class Card:
    """Study on the first page; empty if it has nothing to show yet."""

    name: str
    title: str
    summary: str
    headline: str
    remark: str
    empty: bool


def card(study: Study, page: Page, rows: pd.DataFrame) -> Card:
    failed = int((rows["status"] == "failed").sum())
    latest = rows["end"].max()
    remark = page.remark or text.plural(len(rows), NOUNS[study.rows_of])
    if failed:
        remark += f", {failed:,} failed"
    if bad := len(badly_bound(rows)):
        remark += f", {bad:,} badly bound"
    if pd.notna(latest) and not page.remark:
        remark += f", last on {latest:%Y-%m-%d}"
    headline = page.remark or "Not measured yet" if page.empty else page.headline[0].upper() + page.headline[1:]
    if page.empty:
        remark = "The page says what to run"
    return Card(study.name, study.words.title, study.words.summary, headline, remark, page.empty)


def index(loaded: Loaded, others: pd.DataFrame, jobs: pd.DataFrame) -> Page:
    """Make the first page. others: runs of no study; jobs: of every run and contest its system, study, status, end."""
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
        sections.append(PageSection("Nothing measured yet", blocks, "empty"))
    if jobs["system"].nunique() > FEW:
        sections.append(_systems(jobs))
    sections.append(_read(loaded))
    if loaded.skipped:
        sections.append(_skipped(loaded))
    if len(others):
        sections.append(_others(others))
    return Page(sections, title=TITLE, lead=LEAD, empty=not loaded.statuses)


def _systems(jobs: pd.DataFrame) -> PageSection:
    """List the systems, where they are more than one sees at a glance on the pages themselves."""
    data = (
        jobs.assign(failed=jobs["status"] == "failed")
        .groupby("system", sort=True)
        .agg(jobs=("status", "size"), failed=("failed", "sum"), end=("end", "max"), study=("study", _listed))
        .reset_index()
    )
    columns = columns_of("system jobs", Column("Failed", "failed"), "end study", study="Studies", end="Last measured")
    note = "Each has a part of its own on the pages of its studies, folded to its title where there are many."
    return PageSection("Systems", (Table("What was measured where", columns, data, "systems", note),), "systems")


def _listed(studies: "pd.Series[str]") -> str:
    return ", ".join(sorted(set(studies) - {""}))


def _read(loaded: Loaded) -> PageSection:
    failed = loaded.statuses.count("failed")
    facts = (
        (f"{len(loaded.statuses):,}", "results", f"from {text.plural(loaded.files, 'file')}"),
        (f"{failed:,}", "of failed jobs", "shown with their reason"),
        (f"{len(loaded.skipped):,}", "skipped", "listed below" if loaded.skipped else "nothing was unreadable"),
        (f"{loaded.duplicates:,}", "found twice", "counted once"),
        (f"{loaded.without_record:,}", "without a result", "dry runs and tests that wrote none"),
        (f"{len(loaded.plans) + len(loaded.validations):,}", "plans and validations", "predicted, not measured"),
    )
    return PageSection(
        "What was read", (Paragraph(f"Folders: {', '.join(loaded.folders) or 'none'}."), Facts(facts)), "read"
    )


def _skipped(loaded: Loaded) -> PageSection:
    data = pd.DataFrame(
        [(text.clean(one.source), text.clean(one.reason)) for one in loaded.skipped], columns=["source", "reason"]
    )
    note = "These are not in the report."
    columns = columns_of("source reason", source="File")
    return PageSection("Skipped", (Table("Files and test cases left out", columns, data, "skipped", note),), "skipped")


def _others(others: pd.DataFrame) -> PageSection:
    note = (
        "Runs whose label `study` names none of the studies above, such as ones started by hand; and those of earlier "
        "versions that measured one overlap a job, whose gains are not paired and not shown."
    )
    data = others.assign(failed=others["status"] != "ok").sort_values("end", ascending=False)
    columns = columns_of(
        "end study kind status model ranks grid time_s overlap hardware_flops_per_s source",
        missing={"model": "none", "grid": "none", "overlap": "none"},
    )
    return PageSection(
        "Other runs", (Table("Runs of no study", columns, data, "other", note, failed="failed"),), "other"
    )
