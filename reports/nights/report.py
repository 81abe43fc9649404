"""Report of a night: its verdicts, its alarms with their culprits, and how much chance is in them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Self

import pandas as pd
from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite
from tabulate import tabulate

from reports import text
from reports.columns import columns_of
from reports.nights.culprit import culprit, what_changed
from reports.nights.detector import FALSE_ALARMS_A_YEAR
from reports.nights.judge import FigureHistory, Verdict, Word, judge_nights
from reports.page import Column, Table
from reports.read.history import SKIPPED, History, Night, NightJob
from systems.references import CANARY, FEWEST_JOBS, Key, References, worse_by

BEFORE = 20
"""Nights before a change that show how it was."""
RANKS: Sequence[Word] = ("failed", "worse", "better", "same", "unknown")
"""Order of verdicts in a list, after those with an alarm."""
NOTHING_KEPT = "ReFrame has kept nothing of it, as where the night's time limit is reached"
"""Reason of a test that a night had to run, without any job."""
FINE, WORSE, UNKNOWN = 0, 1, 2
"""Exit codes of par4d verdict."""


@dataclass(frozen=True, slots=True)
class NightReport:
    """Verdicts of a night, and what explains them."""

    system: str
    night: Night
    verdicts: tuple[Verdict, ...]
    """The worst first."""
    alarms: Mapping[tuple[Key, str], str]
    """A sentence about each alarm, by its test and figure."""
    remarks: tuple[str, ...]
    """Other facts, in sentences."""
    names: Mapping[Key, str]
    """A unique name of each test that has ever measured something."""
    figures: Sequence[FigureHistory]
    """All figures that are judged, through all nights."""

    def named(self, key: Key) -> str:
        return self.names.get(key) or text.clean(plain_name(key), 120)

    @property
    def counts(self) -> Counter[Word]:
        return Counter(verdict.word for verdict in self.verdicts)

    @property
    def code(self) -> int:
        if self.alarms or self.counts["failed"]:
            return WORSE
        return UNKNOWN if self.counts["unknown"] or not self.verdicts else FINE

    @property
    def headline(self) -> str:
        tests = list(dict.fromkeys(self.named(key) for key, _ in self.alarms))
        worse = f"{' and '.join(tests[:2])}{f' and {len(tests) - 2} more' if len(tests) > 2 else ''}"
        far, counts = sum(verdict.far for verdict in self.verdicts), self.counts
        parts = [(len(self.alarms), f"got worse, of {worse}"), (far, "far off, which is no alarm yet")]
        parts += [(counts[word], word) for word in RANKS if word != "worse"]
        judged = counts["same"] + counts["better"]
        none = "" if self.alarms else "nothing got worse, " if judged else "nothing could be judged, "
        return f"{self.system}, night {self.night.name}: {none}{', '.join(f'{n} {words}' for n, words in parts if n)}."


def night_reports(
    history: History, known: References | None, *, last: int = 1, night: str | None = None
) -> list[NightReport]:
    """Report the last nights, oldest first, or the one of that name."""
    figures, names, reports = judge_nights(history, known), name_tests(history), list[NightReport]()
    positions = [at for at, each in enumerate(history.nights) if night in (None, each.name)]
    for position in positions[-last:]:
        nights = history.nights[: position + 1]
        verdicts, partial = _without_result(nights[-1])
        verdicts += (figure.verdicts[position] for figure in figures if position in figure.verdicts)
        verdicts.sort(key=lambda v: (not v.alarm, RANKS.index(v.word), plain_name(v.key), v.figure))
        alarms = {(v.key, v.figure): _sentence(v, names[v.key], nights) for v in verdicts if v.alarm}
        remarks = (*history.remarks, *_remarks(history, partial, known, verdicts, names))
        reports.append(NightReport(history.system, nights[-1], tuple(verdicts), alarms, remarks, names, figures))
    return reports


def _without_result(night: Night) -> tuple[list[Verdict], list[str]]:
    """Return verdicts of a night's tests without a result, and a remark on each with results of some jobs only."""
    verdicts, remarks, by_test = list[Verdict](), list[str](), defaultdict[object, list[NightJob]](list)
    for job in night.jobs:
        by_test[job.key.partition, job.key.name].append(job)  # parts of a key that a job without a result has
    measured = {job.key.name for job in night.jobs if job.figures}
    for jobs in by_test.values():
        key, name = jobs[0].key, plain_name(jobs[0].key)
        failed = [job for job in jobs if job.failed]
        without = [job for job in jobs if job.reason and not job.failed]
        if without and any(job.figures for job in jobs):
            remarks.append(f"{len(without)} of {len(jobs)} jobs of {name}: {without[0].reason}.")
        elif without and key.name in measured and all(job.reason == SKIPPED for job in jobs):
            remarks.append(f"{name} on {key.partition}: {SKIPPED}.")  # another partition has room for it
        elif without and not failed:
            verdicts.append(Verdict(without[0].key, "", "", "unknown", 0, reason=without[0].reason))
        if failed:
            count = f"{len(failed)} of {len(jobs)} jobs: " if len(failed) < len(jobs) else ""
            verdicts.append(Verdict(failed[0].key, "", "", "failed", 0, reason=f"{count}{failed[0].reason}"))
    there = {job.key.name for job in night.jobs}
    lost = [Key("", test, point, "", 0, "", "") for test, point in night.chosen if (test, point) not in there]
    return verdicts + [Verdict(key, "", "", "unknown", 0, reason=NOTHING_KEPT) for key in lost], remarks


def name_tests(history: History) -> dict[Key, str]:
    """Name each measured test by its name and point, and by its other settings where names would clash."""
    keys = dict.fromkeys(job.key for job in history.jobs if job.figures)
    uses, seen, names = Counter(map(plain_name, keys)), Counter[str](), dict[Key, str]()
    for key in keys:
        name = plain_name(key)
        if uses[name] > 1:
            name = ", ".join(filter(None, (name, key.partition, key.grid, key.precision)))
        name = text.clean(name, 120)
        seen[name] += 1
        names[key] = name + (f", options {seen[name]}" if seen[name] > 1 else "")
    return names


def plain_name(key: Key) -> str:
    return " ".join(word for word in (key.test, key.point.replace("point=", "")) if word)


def _remarks(
    history: History,
    partial: Iterable[str],
    known: References | None,
    verdicts: Sequence[Verdict],
    names: Mapping[Key, str],
) -> Iterable[str]:
    if judged := sum(verdict.word in ("worse", "same", "better") for verdict in verdicts):
        chance = f"alarms are meant to be false {FALSE_ALARMS_A_YEAR:g} times a year"
        yield f"Chance: with {text.plural(judged, 'figure')} judged every night, {chance}."
    yield from partial
    if known is None:
        system, make = history.system, f"run `par4d reference make --system {history.system}`"
        yield f"There are no references of {system}: with {FEWEST_JOBS} jobs of a test, {make}."
    if drifted := sorted((verdict for verdict in verdicts if verdict.drift), key=lambda verdict: -verdict.drift):
        words = ", ".join(f"{names[v.key]} {v.figure} (by {text.percent(v.drift)})" for v in drifted)
        stays = "If it is meant to stay, make the references anew."
        yield f"Worse than the reference, without an alarm: {words}. {stays}"


def _sentence(verdict: Verdict, test: str, nights: Sequence[Night]) -> str:
    """Write what got worse, by how much, since when, the culprit, and what of the machine changed then.

    The alarm may begin a night early or late, so its first night and the one before it are left out.
    """
    alarm, worse = verdict.alarm, worse_by(verdict.unit)
    assert alarm is not None
    early, late = nights[: max(0, alarm.since - 1)][-BEFORE:], nights[alarm.since + 1 :]
    before, since = ([job for night in part for job in night.measured(verdict.key)] for part in (early, late))
    changed = what_changed([job.state for job in before], [job.state for job in since])
    way = "longer" if verdict.unit == "s" else "more" if worse > 0 else "less"
    size = text.percent(abs(alarm.effect if worse > 0 else -alarm.effect / (1 + alarm.effect)))
    part = culprit(CANARY if verdict.figure == CANARY else verdict.key.test, since, before)
    sentences = [
        f"{test}: {verdict.figure} is {size} {way} since the night {nights[alarm.since].name}.",
        f"Culprit: {part}." if part else "Its parts tell no culprit.",
        f"Changed then: {'; '.join(changed)}." if changed else "Nothing that is recorded changed.",
    ]
    return " ".join(sentences)


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
    """List the verdicts, the worst first."""
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
    verdicts = table(report)
    rows = [[write(cell.text) for cell in cells] for cells in verdicts.rows()]
    return f"{tabulate(rows, [column.title for column in verdicts.columns], form, disable_numparse=True)}\n"


def _marked(words: str) -> str:
    """Escape what Markdown would take as markup."""
    return text.clean(words, 2000).translate(MARKUP)


def as_junit(report: NightReport) -> str:
    """Write each figure as a test case: an alarm and a failed test are failures, an unknown figure is skipped."""
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
    suite, file = TestSuite(f"par4d {text.clean(name)}"), JUnitXml()
    suite.timestamp = began.isoformat(timespec="seconds")
    suite.add_testcases(list(cases))
    file.add_testsuite(suite)
    file.update_statistics()
    return f"{file.tostring().decode()}\n"
