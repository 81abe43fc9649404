"""A night is told as text for a terminal or a mail, Markdown for a ticket, JUnit for a pipeline, or JSON."""

import json
import math
from dataclasses import asdict

from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite
from tabulate import tabulate

from reports import text
from reports.nights.report import NightReport
from reports.nights.table import table
from reports.nights.verdicts import Verdict

_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\|*_`["} | {"<": "&lt;", "&": "&amp;"})


def as_text(report: NightReport) -> str:
    alarms = "".join(f"  {raised.sentence}\n" for raised in report.alarms)
    parts = [f"{report.headline}\n{alarms}", _table(report, "plain"), "\n".join((report.chance, *report.remarks))]
    return "\n".join(part if part.endswith("\n") else f"{part}\n" for part in parts if part)


def as_markdown(report: NightReport) -> str:
    alarms = "".join(f"* {_marked(raised.sentence)}\n" for raised in report.alarms)
    parts = [f"**{_marked(report.headline)}**\n", alarms, _table(report, "github", marked=True)]
    return "\n".join([*(part for part in parts if part), *map(_marked, ("", report.chance, *report.remarks))]) + "\n"


def _table(report: NightReport, form: str, *, marked: bool = False) -> str:
    if not report.verdicts:
        return ""
    found = table(report)
    rows = [[_marked(cell.text) if marked else cell.text for cell in row] for row in found.rows()]
    return str(tabulate(rows, [column.title for column in found.columns], form, disable_numparse=True))


def as_junit(report: NightReport) -> str:
    """Each figure is a test case: an alarm and a failed test are failures, an unknown figure is skipped."""
    suite = TestSuite(f"par4d {text.clean(report.system)}")
    suite.timestamp = report.began.isoformat(timespec="seconds")
    alarms = {id(raised.verdict): raised.sentence for raised in report.alarms}
    for verdict in report.verdicts:
        case = TestCase(text.clean(verdict.figure) or "run", classname=report.named(verdict.key))
        if sentence := alarms.get(id(verdict)):
            case.result = [Failure(text.clean(sentence, 2000))]
        elif verdict.word == "failed":
            case.result = [Failure(text.clean(verdict.reason, 2000))]
        elif verdict.word == "unknown":
            case.result = [Skipped(text.clean(verdict.reason, 2000))]
        suite.add_testcase(case)
    found = JUnitXml()
    found.add_testsuite(suite)
    found.update_statistics()
    return str(found.tostring().decode()) + "\n"


def as_json(*several: NightReport) -> str:
    return json.dumps([_data(report) for report in several], indent=1)


def _data(report: NightReport) -> dict[str, object]:
    return {
        "system": report.system,
        "night": report.night,
        "began": report.began.isoformat(timespec="seconds"),
        "code": report.code,
        "headline": report.headline,
        "counts": report.counts,
        "alarms": [
            {"test": one.test, "figure": one.verdict.figure, "culprit": one.culprit,
             "changed": list(one.changed), "sentence": one.sentence} for one in report.alarms
        ],
        "verdicts": [_verdict(verdict) for verdict in report.verdicts],
        "remarks": list(report.remarks),
    }  # fmt: skip


def _verdict(verdict: Verdict) -> dict[str, object]:
    found = verdict.key._asdict() | asdict(verdict) | {"verdict": verdict.word}
    del found["key"], found["word"]
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in found.items()}


def _marked(words: str) -> str:
    """Escape what a Markdown table or line would take as markup."""
    return text.clean(words, 2000).translate(_SPECIAL)
