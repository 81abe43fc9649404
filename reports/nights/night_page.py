"""A page says of every system's last night whether anything got worse, through what, and what can't be said."""

from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from reports import text
from reports.columns import columns_of
from reports.nights.followed import FollowedSystem
from reports.nights.report import FINE, WORSE, NightReport
from reports.nights.summary import Amount, read
from reports.nights.verdicts import Verdict
from reports.page import Block, Column, Facts, Notice, Notices, Page, Paragraph, Section, Table

NAME, TITLE = "night", "Last night"
LEAD = (
    "Whether anything got worse, by the last nightly run of each system: every figure against what the nights before "
    "it let expect, and alarms where its level got worse by more than chance explains."
)
BAD = frozenset({"worse", "failed"})
NOT_JUDGED = ("failed", "unknown")
TEST = columns_of("test figure", missing={"figure": "all"})


def page(systems: Sequence[FollowedSystem]) -> Page:
    return Page(TITLE, LEAD, tuple(_section(system) for system in systems), "")


def notice(system: FollowedSystem, details: Iterable[str] = (), links: Iterable[tuple[str, str]] = ()) -> Notice:
    """Tell the night in one line, with the details and links of a Notice."""
    report = system.report
    if report.code == WORSE:
        word = "Worse" if report.alarms else "Failed"
    else:
        word = "Fine" if report.code == FINE else "Not all judged" if report.judged else "Not judged"
    kind = "worse" if report.code == WORSE else "fine" if report.code == FINE else "unknown"
    words = text.clean(report.headline, 400)
    return Notice(kind, word, words, tuple(text.clean(one, 1000) for one in details), tuple(links))  # type: ignore[arg-type]


def summary(systems: Iterable[FollowedSystem]) -> Notices:
    return Notices(tuple(notice(system, links=[(f"{NAME}.html#{system.page}", TITLE)]) for system in systems))


def _section(system: FollowedSystem) -> Section:
    report = system.report
    line = notice(system, (one.sentence for one in report.alarms), [(f"{system.page}.html", "All nights")])
    blocks: list[Block] = [Notices((line,)), _facts(report)]
    judged = [_row(system, verdict) for verdict in report.verdicts if verdict.word not in NOT_JUDGED]
    others = [_row(system, verdict) for verdict in report.verdicts if verdict.word in NOT_JUDGED]
    if judged:
        blocks.append(_table(f"{system.page}-verdicts", judged))
    if others:
        blocks.append(_not_judged(f"{system.page}-others", others))
    if not report.verdicts:
        blocks.append(Paragraph("None of its tests has measured anything that is judged."))
    blocks += [Paragraph(text.clean(one, 1000)) for one in (report.chance, *report.remarks)]
    return Section(f"{system.name}, night {text.clean(report.night, 60)}", tuple(blocks), system.page)


def _facts(report: NightReport) -> Facts:
    counts = report.counts
    facts = (
        (len(report.alarms), "alarms", "worse than chance explains"),
        (counts["better"], "better", "lately, and since then"),
        (counts["same"], "same", "within what is usual"),
        (counts["unknown"], "unknown", "no reference, few nights, or no result"),
        (counts["failed"], "failed", "tests, not figures"),
    )
    return Facts(tuple((f"{number:,}", what, remark) for number, what, remark in facts))


def _table(name: str, rows: list[dict[str, Any]]) -> Table:
    columns = columns_of(
        Column("Verdict", "verdict", numeric=False, bad=BAD),
        *TEST,
        Column("Tonight", "value", read),
        Column("Expected", "usual", read),
        "change jobs",
    )
    note = (
        "The change is of the night's median by what the nights before let expect; 95 of 100 nights without any change "
        "lie within its interval. An alarm takes several nights that agree."
    )
    return Table("Verdicts", columns, pd.DataFrame(rows, dtype=object), name, note)


def _not_judged(name: str, rows: list[dict[str, Any]]) -> Table:
    columns = columns_of(
        Column("Verdict", "verdict", numeric=False, bad=BAD),
        *TEST,
        Column("Tonight", "value", read, missing="none"),
        "jobs why",
        missing={"jobs": "none"},
    )
    note = "A test that failed has no figures; a figure without a reference is unknown, not the same."
    return Table("Failed or not judged", columns, pd.DataFrame(rows, dtype=object), name, note)


def _row(system: FollowedSystem, verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.word,
        "test": system.report.named(verdict.key),
        "figure": text.clean(verdict.figure, 80),
        "value": Amount(verdict.value, verdict.unit),
        "usual": Amount(verdict.usual, verdict.unit),
        **{name: getattr(verdict, name) for name in ("change", "low", "high")},
        "jobs": verdict.jobs or None,
        "why": text.clean(verdict.reason, 400),
    }
