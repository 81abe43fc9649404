"""GPU check: what ci/gpu has found on each device, the newest of each."""

from typing import Any

import pandas as pd

from engine.result.schema.gpu_check import Finding, GpuCheck
from reports import text
from reports.columns import columns_of
from reports.frames.frame import Frames
from reports.page import (
    MOST_SECTIONS,
    NOT_RECORDED,
    Block,
    Facts,
    Page,
    PageSection,
    Paragraph,
    Table,
    nothing_measured,
)
from reports.pages.study import Study
from reports.words import NOTES

WORDS = {"pass": "passed", "fail": "failed", "undecided": "undecided", "told": "told, not judged", "not run": "not run"}
SOFTWARE = ("torch", "cuda", "hip", "nccl", "driver")
FINDINGS = "finding outcome figure want seen seconds"


def build(mine: Frames, everything: Frames) -> Page:
    checks = mine.checks
    if checks.empty:
        nothing = nothing_measured("ci/gpu", how="On a machine with a GPU, run the check")
        return Page([nothing], empty=True)
    newest = checks.sort_values("end", kind="stable").drop_duplicates(["device", "name"], keep="last")
    shown = newest.sort_values(["device", "name"], ascending=[False, True]).head(MOST_SECTIONS)
    sections = [_section(*one) for one in text.titled((row for _, row in shown.iterrows()), _title)]
    return Page(sections, _headline(shown))


STUDY = Study("gpu", 10, lambda checks: checks["status"] != "", build, "checks")


def _title(row: "pd.Series[Any]") -> str:
    return f"{row['name']}{'' if row['device'] == 'cuda' else ', rehearsal'}"


def _headline(shown: pd.DataFrame) -> str:
    on_gpus = shown[shown["device"] == "cuda"]
    if on_gpus.empty:
        return "rehearsed without a GPU only"
    checked = f"checked on {text.plural(len(on_gpus), 'device')}"
    said = [
        f"{count} of them {words}"
        for status, words in (("failed", "with failures"), ("undecided", "with what is undecided or was not run"))
        if (count := int((on_gpus["status"] == status).sum()))
    ]
    return ", ".join([checked, *(said or ["all that is judged passed"])])


def _section(name: str, title: str, row: "pd.Series[Any]") -> PageSection:
    result: GpuCheck = row["result"]
    blocks: list[Block] = [] if result.device == "cuda" else [Paragraph(NOTES["rehearsal"])]
    return PageSection(title, (*blocks, _facts(result), _findings(name, row, result)), f"on-{name}", one_of_many=True)


def _facts(result: GpuCheck) -> Facts:
    outcomes: list[str] = [finding.status for finding in result.findings]
    memory = f", {text.memory(result.memory_bytes)} each" if result.memory_bytes else ""
    facts = [(f"{outcomes.count(status):,}", words, "") for status, words in WORDS.items()]
    facts.append((text.seconds(result.seconds), "in all", f"of {result.minutes:g} minutes that it might take"))
    what = "devices" if result.devices != 1 else "device"
    return Facts([*facts, (f"{result.devices:,}", what, f"the first is named here{memory}")])


def _findings(name: str, row: "pd.Series[Any]", result: GpuCheck) -> Table:
    versions = result.provenance.versions
    software = ", ".join(f"{key} {versions[key]}" for key in SOFTWARE if key in versions)
    commit = (result.provenance.git_commit or NOT_RECORDED)[:12]
    ended = NOT_RECORDED if pd.isna(row["end"]) else text.moment(row["end"])
    note = f"Ended {ended}; commit {text.clean(commit)}; {text.clean(software)}; read from {row['source']}."
    missing = {"figure": "none", "seconds": "not run"}
    columns = columns_of(FINDINGS, missing=missing, seconds="Its process took")
    return Table("Findings", columns, findings(result), f"{name}-findings", note)


def findings(result: GpuCheck) -> pd.DataFrame:
    """Make one row a finding of a run, as text: each figure has a unit of its own."""
    rows = [
        (
            text.clean(one.name, 160),
            one.status,
            _figure(one),
            text.clean(one.want, 160),
            text.clean(one.sentence),
            text.number(one.seconds),
        )
        for one in result.findings
    ]
    return pd.DataFrame(rows, columns=FINDINGS.split())


def _figure(one: Finding) -> str:
    written = "" if one.figure is None else text.significant(text.number(one.figure), 3)
    return f"{written} {text.clean(one.unit, 40)}".strip() if written else ""
