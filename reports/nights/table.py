"""Table of a night's verdicts, for the page, and as text, Markdown and JUnit."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Self

import pandas as pd
from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite
from tabulate import tabulate

from reports import text
from reports.columns import columns_of
from reports.nights.judge import Verdict
from reports.nights.report import NightReport
from reports.page import Column, Table

UNITS: Mapping[str, Callable[[float], str]] = {"s": text.seconds, "B": text.memory, "x": text.times}
NOTE = (
    "The change is of the night's median by what the nights before let expect; at least 95 of 100 nights without "
    "any change lie within its interval. An alarm takes several nights that agree; better is what lately has changed "
    "so. A test that failed has no figures; a figure without a reference, or of few nights, is unknown, not the same."
)
CHANGE = Column("Change (95 %)", "change", text.signed, missing="none", spread=("low", "high"))
MARKUP = str.maketrans({char: f"\\{char}" for char in "\\|*_`["} | {"<": "&lt;", "&": "&amp;"})


class Amount(float):
    """Number with a unit: sorted, and written to a CSV, as a number; read with the unit."""

    unit: str

    def __new__(cls, value: float, unit: str = "") -> Self:
        made = super().__new__(cls, value)
        made.unit = unit
        return made

    def read(self) -> str:
        return UNITS[self.unit](self) if self.unit in UNITS else text.si(self, self.unit)


def row(test: str, verdict: Verdict) -> dict[str, object]:
    """Write a verdict as a row, in text that is safe to show."""
    also = ", alarm" if verdict.alarm and verdict.word != "worse" else ""
    return {
        "verdict": f"{verdict.word}{also}",
        "test": test,
        "figure": text.clean(verdict.figure, 80),
        "unit": verdict.unit,
        "value": Amount(verdict.value, verdict.unit),
        "usual": Amount(verdict.usual, verdict.unit),
        **{name: getattr(verdict, name) for name in ("change", "low", "high")},
        "jobs": verdict.jobs or None,
        "why": text.clean(verdict.reason, 400),
    }


def table(report: NightReport) -> Table:
    """List the verdicts, what is worst first."""
    columns = columns_of(
        Column("Verdict", "verdict", numeric=False, bad=frozenset({"worse", "unknown, alarm", "failed"})),
        "test figure",
        Column("Tonight", "value", Amount.read, missing="none"),
        Column("Expected", "usual", Amount.read, missing="none"),
        CHANGE,
        "jobs why",
        missing={"figure": "all", "jobs": "none", "why": ""},
    )
    rows = [row(report.named(verdict.key), verdict) for verdict in report.verdicts]
    return Table("Verdicts", columns, pd.DataFrame(rows, dtype=object), "verdicts", NOTE)


def as_text(report: NightReport) -> str:
    alarms = [f"  {sentence}" for sentence in report.alarms.values()]
    return "\n".join([report.headline, *alarms, "", _tabulated(report, "plain"), *report.remarks, ""])


def as_markdown(report: NightReport) -> str:
    alarms = "".join(f"* {_marked(sentence)}\n" for sentence in report.alarms.values())
    parts = [f"**{_marked(report.headline)}**\n", alarms, _tabulated(report, "github", _marked)]
    return "\n".join([*filter(None, parts), *map(_marked, report.remarks), ""])


def _tabulated(report: NightReport, form: str, write: Callable[[str], str] = str) -> str:
    if not report.verdicts:
        return ""
    found = table(report)
    rows = [[write(cell.text) for cell in cells] for cells in found.rows()]
    return f"{tabulate(rows, [column.title for column in found.columns], form, disable_numparse=True)}\n"


def _marked(words: str) -> str:
    """Escape what Markdown would take as markup."""
    return text.clean(words, 2000).translate(MARKUP)


def as_junit(report: NightReport) -> str:
    """Each figure is a test case: an alarm and a failed test are failures, an unknown figure is skipped."""
    cases = []
    for verdict in report.verdicts:
        case = TestCase(text.clean(verdict.figure) or "run", classname=report.named(verdict.key))
        why = text.clean(report.alarms.get((verdict.key, verdict.figure)) or verdict.reason, 2000)
        if verdict.alarm or verdict.word == "failed":
            case.result = [Failure(why)]
        elif verdict.word == "unknown":
            case.result = [Skipped(why)]
        cases.append(case)
    return junit_file(report.system, cases, report.night.began)


def junit_file(name: str, cases: Iterable[TestCase], began: datetime) -> str:
    """Write a suite of these cases."""
    suite, found = TestSuite(f"par4d {text.clean(name)}"), JUnitXml()
    suite.timestamp = began.isoformat(timespec="seconds")
    suite.add_testcases(list(cases))
    found.add_testsuite(suite)
    found.update_statistics()
    return f"{found.tostring().decode()}\n"
