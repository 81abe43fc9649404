"""A page says of every system's last night whether anything got worse, through what, and what can't be said."""

from collections.abc import Iterable, Sequence

from reports import text
from reports.nights.followed import FollowedSystem
from reports.nights.report import FINE, WORSE, NightReport
from reports.nights.table import table
from reports.page import Block, Facts, Notice, Notices, Page, Paragraph, Section

NAME, TITLE = "night", "Last night"
LEAD = (
    "Whether anything got worse, by the last nightly run of each system: every figure against what the nights before "
    "it let expect, and alarms where its level got worse by more than chance explains."
)


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
    if report.verdicts:
        blocks.append(table(report, f"{system.page}-verdicts"))
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
