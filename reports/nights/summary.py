"""A night's summary is text, Markdown for a ticket, JUnit for a pipeline, or JSON."""

import json
import math
from collections.abc import Callable, Mapping
from xml.etree import ElementTree

from reports import text
from reports.nights.report import NightReport
from reports.nights.verdicts import Verdict

HEAD = ("test", "figure", "tonight", "expected", "change (95 % interval)", "jobs")
Write = Callable[[float], str]
UNITS: Mapping[str, Write] = {"s": text.seconds, "flop/s": text.flops, "B": text.memory, "x": text.times}


def amount(value: float, unit: str) -> str:
    return UNITS[unit](value) if unit in UNITS else text.si(value, unit)


class Amount(float):
    """A number that knows its unit: it sorts and goes to a CSV as a number, and is read with the unit."""

    unit: str

    def __new__(cls, value: float, unit: str) -> "Amount":
        made = super().__new__(cls, value)
        made.unit = unit
        return made


def read(value: Amount) -> str:
    return amount(value, value.unit)


def as_text(report: NightReport) -> str:
    lines = [report.headline]
    lines += [f"  {raised.sentence}" for raised in report.alarms]
    rows = [_row(report, verdict) for verdict in report.verdicts]
    if rows:
        head = ("", *HEAD)
        widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
        lines.append("")
        lines += ["  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
                  for row in (head, *rows)]  # fmt: skip
    lines += ["", report.chance, *report.remarks]
    return "\n".join(lines) + "\n"


def as_markdown(report: NightReport) -> str:
    lines = [f"**{_marked(report.headline)}**", ""]
    lines += [f"* {_marked(raised.sentence)}" for raised in report.alarms]
    head = ("verdict", *HEAD)
    lines += ["", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(map(_marked, _row(report, verdict)))} |" for verdict in report.verdicts]
    lines += ["", *(_marked(line) for line in (report.chance, *report.remarks))]
    return "\n".join(lines) + "\n"


def as_junit(report: NightReport) -> str:
    """Each figure is a test case: an alarm and a failed test are failures, an unknown figure is skipped."""
    counts = report.counts
    suite = ElementTree.Element(
        "testsuite",
        name=f"par4d {report.system}",
        timestamp=report.began.isoformat(timespec="seconds"),
        tests=str(len(report.verdicts)),
        failures=str(len(report.alarms) + counts["failed"]),
        skipped=str(sum(verdict.word == "unknown" and not verdict.alarm for verdict in report.verdicts)),
        errors="0",
    )
    alarms = {id(raised.verdict): raised.sentence for raised in report.alarms}
    for verdict in report.verdicts:
        case = ElementTree.SubElement(
            suite, "testcase", classname=_xml(report.named(verdict.key)), name=_xml(verdict.figure or "run")
        )
        if sentence := alarms.get(id(verdict)):
            ElementTree.SubElement(case, "failure", message=_xml(sentence))
        elif verdict.word == "failed":
            ElementTree.SubElement(case, "failure", message=_xml(verdict.reason))
        elif verdict.word == "unknown":
            ElementTree.SubElement(case, "skipped", message=_xml(verdict.reason))
        else:
            ElementTree.SubElement(case, "system-out").text = _xml("; ".join(_row(report, verdict)))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


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
    numbers = {name: getattr(verdict, name) for name in ("value", "usual", "change", "low", "high", "drift")}
    alarm = verdict.alarm
    return {
        **verdict.key._asdict(),
        "figure": verdict.figure,
        "unit": verdict.unit,
        "verdict": verdict.word,
        "jobs": verdict.jobs,
        **{name: None if math.isnan(value) else value for name, value in numbers.items()},
        "reason": verdict.reason,
        "alarm": alarm and {"since": alarm.night, "new": alarm.new, "effect": alarm.effect, "chance": alarm.chance},
    }


def _row(report: NightReport, verdict: Verdict) -> tuple[str, ...]:
    word, test = f"{verdict.word}, ALARM" if verdict.alarm else verdict.word, report.named(verdict.key)
    if not verdict.figure:
        return word, test, text.clean(verdict.reason, 100), "", "", "", ""
    value = amount(verdict.value, verdict.unit) if verdict.jobs else ""
    if verdict.word == "unknown":
        return word, test, verdict.figure, value, verdict.reason, "", str(verdict.jobs)
    ends = f"{text.signed(verdict.change)} ({text.signed(verdict.low)} to {text.signed(verdict.high)})"
    usual = amount(verdict.usual, verdict.unit)
    return word, test, verdict.figure, value, usual, ends, str(verdict.jobs)


_SPECIAL = str.maketrans({char: f"\\{char}" for char in "\\|*_`["} | {"<": "&lt;", "&": "&amp;"})


def _marked(words: str) -> str:
    """Escape what a Markdown table or line would take as markup."""
    return text.clean(words, 2000).translate(_SPECIAL)


def _xml(words: str) -> str:
    """Remove the characters that XML can't have."""
    return text.clean(words, 2000)
