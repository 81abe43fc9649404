"""A system's page says whether anything got worse last night, and shows every judged figure night by night."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from engine.errors import EngineError
from reports import text
from reports.columns import columns_of
from reports.nights.chart import MOST_NIGHTS, chart
from reports.nights.culprit import what_changed
from reports.nights.history import NODES, History, Night
from reports.nights.judge import GIVEN_UP, FigureHistory
from reports.nights.report import FINE, WORSE, NightReport, night_reports
from reports.nights.table import CHANGE, Amount, row, table
from reports.page import Column, Download, Figure, Figures, Notice, Notices, Page, Paragraph, Section, Table
from systems import references
from systems.references import Key, worse_by

MOST_CHARTS = 60
LEAD = "Whether anything got worse last night, through what, and every figure that is judged, night by night."
READING = (
    "A dot is a night, the median of its jobs, and red in nights with an alarm. The line is what the nights before "
    "let expect, and at least 95 of 100 nights lie in the band while nothing changes. The level changed last at the "
    "dotted line. A ring is a night in which versions or settings of the machine differed from the night before. "
    "What stands at the edge may be farther off. The CSV has every figure in every night, also those not drawn."
)
CHANGES = (
    "Nights with which another level began, newest first. One for the worse is an alarm until another for the better "
    "undoes it; the night may be off by one or two."
)
QUIET = ("commit ", f"{NODES}: ")
"""Words that begin so are of what differs from night to night anyway, and of no update."""


@dataclass(frozen=True, slots=True)
class NightsPage:
    """A system's page has a name, and a notice that tells its last night on other pages."""

    name: str
    page: Page
    notice: Notice


def pages(histories: Sequence[History]) -> list[NightsPage]:
    return [_page(f"nights-{slug}", one) for slug, _, one in text.titled(histories, lambda one: one.system)]


def _page(name: str, history: History) -> NightsPage:
    known, why = None, tuple[str, ...]()
    if history.system in {path.stem for path in references.FOLDER.glob("*.yaml")}:  # whatever the name may be
        try:
            known = references.references(history.system)
        except (EngineError, OSError) as error:
            why = (str(error),)
    (report,) = night_reports(history, known)
    notice, data = _notice(report), _rows(history.nights, report.figures, report.names)
    verdicts = table(report) if report.verdicts else Paragraph("Its tests have measured nothing that is judged.")
    nights, jobs = text.plural(len(history.nights), "night"), text.plural(len([*history.jobs]), "job")
    of = f"There are {nights} of {history.system} since {history.nights[0].began:%Y-%m-%d}, of {jobs}."
    remarks = [Paragraph(text.clean(words, 1000)) for words in (*why, *report.remarks, of)]
    sections = [Section("Last night", (Notices((notice,)), verdicts, *remarks), "night")]
    sections += [_figures(data, history.nights), _changes(data)] if len(data) else []
    title = f"Nights of {text.clean(history.system, 24)}"
    told = replace(notice, details=(), links=((f"{name}.html", title),))
    return NightsPage(name, Page(title, LEAD, sections, ""), told)


def _rows(nights: Sequence[Night], every: Iterable[FigureHistory], names: Mapping[Key, str]) -> pd.DataFrame:
    """Make a row of every judged figure in every night that has it: its verdict (table.py), the least and the most of
    its jobs, since when it has an alarm, what its level changed by with that night, and what was updated then.
    """
    rows = []
    for one in every:
        before = list[Mapping[str, str]]()
        for at, jobs in one.jobs.items():
            values, states, size = one.measured(jobs), [job.state for job in jobs], one.changes.get(at)
            updates = [words for words in what_changed(before, states) if not words.startswith(QUIET)]
            verdict = one.verdicts.get(at) or one.unknown(values, "before the references")
            before = states
            rows.append(
                {
                    "at": at, "night": text.clean(nights[at].name, 40), "began": nights[at].began.isoformat(),
                    **row(names[one.key], verdict), "least": min(values), "most": max(values),
                    "alarm_since": text.clean(nights[verdict.alarm.since].name, 40) if verdict.alarm else "",
                    "level": math.nan if size is None else math.expm1(worse_by(one.unit) * size),
                    "way": "" if size is None else "worse" if size > 0 else "better",
                    "updated": text.clean("; ".join(updates), 400),
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def _notice(report: NightReport) -> Notice:
    """Tell the night in one line, and its alarms in a sentence each."""
    said, alarms = text.clean(report.headline), tuple(text.clean(one, 1000) for one in report.alarms.values())
    if report.code == WORSE:
        return Notice("worse", "Worse" if alarms else "Failed", said, alarms)
    return Notice("fine", "Fine", said) if report.code == FINE else Notice("unknown", "Not all judged", said)


def _figures(data: pd.DataFrame, nights: Sequence[Night]) -> Section:
    """Draw what has an alarm first, then what has changed, and last what is not measured any more."""
    ranked = []
    for (test, figure), rows in data.groupby(["test", "figure"]):
        last = rows.iloc[-1]
        ended, changed = last["at"] < len(nights) - GIVEN_UP, rows["level"].notna().any()
        if last["at"] >= len(nights) - MOST_NIGHTS:
            ranked.append(((ended, not last["alarm_since"], not changed), f"{test}, {figure}", rows))
    ranked = sorted(ranked, key=lambda one: one[:2])[:MOST_CHARTS]
    figures = [
        Figure(title, said := _caption(rows.iloc[-1], len(nights)), chart(rows, nights), rows, f"figure-{slug}", said)
        for slug, title, (_, _, rows) in text.titled(ranked, lambda one: one[1])
    ]
    download = Download(f"Every figure in every night, {len(data):,} rows:", data, "all")
    return Section("Figures", (Paragraph(READING), Figures(figures), download), "figures")


def _caption(last: pd.Series, nights: int) -> str:
    """Say how the figure was when it was last measured."""
    when = "last night" if last["at"] == nights - 1 else f"in the night {last['night']}, the last one that has it"
    value, usual = (Amount(last[key], last["unit"]).read() for key in ("value", "usual"))
    if last["verdict"] == "unknown":
        return f"{value} {when}: {last['why']}."
    change = CHANGE.cell(tuple(last[key] for key in CHANGE.keys), failed=False).text
    alarm = f", alarm since the night {last['alarm_since']}" if last["alarm_since"] else ""
    return f"{value} {when}, {change} against {usual}: {last['verdict']}{alarm}."


def _changes(data: pd.DataFrame) -> Section:
    changed = data[data["level"].notna()].sort_values("at", ascending=False, kind="stable")
    bad = Column("For the", "way", numeric=False, bad=frozenset({"worse"}))
    columns = columns_of("night test figure", Column("Change", "level", text.signed), bad, "updated")
    found = Table("Change points", columns, changed, "changes", CHANGES)
    none = Paragraph("No figure has changed its level.")
    return Section("Changes of level", (found if len(changed) else none,), "changes")
