"""A night selects tests, runs them, runs again what looks worse, judges, and keeps the summary."""

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from engine.errors import RunError, UsageError
from engine.files import write_text
from night.selection import HOUR_S, NightlyTest, Selection, nightly_tests, select
from night.session import NightRun
from reports import text
from reports.nights import summary
from reports.nights.history import History, NightJob, history
from reports.nights.judge import suspects
from reports.nights.report import NightReport, night_reports
from systems.references import Key, name_of, references

ENOUGH = 3
"""So many slow jobs of a test in a night are enough: more say nothing new, as a whole night can be off."""
REPORT_TIMEOUT_S = 1800
OUT_OF_TIME = "The night's time limit was reached: what was still to be run was left out."


def run(night: NightRun, node_hours: float, jobs: int) -> NightReport:
    """Run a whole night and write the verdicts to standard output. jobs: how many each test gets if the budget does.

    What looks worse is run again before other tests get a second job. Raises UsageError for a budget without room,
    RunError where there are no results.
    """
    for old in _folder(night).glob("latest.*"):
        old.unlink()  # nobody may take it for tonight's
    references(night.system)  # a bad file is reported before anything is spent
    every = nightly_tests(night.describe(), history(night.database, night.system))
    selection = select(every, node_hours)
    if not selection.chosen:
        least = min(every, key=lambda test: test.whole_hours)
        raise UsageError(
            f"{node_hours:g} node-hours have room for no nightly test of {night.system}: the smallest, {least.name}, "
            f"takes {least.whole_hours:.2g} {least.by}."
        )
    _say_selection(night, selection, node_hours)
    in_time = night.run(selection.chosen)
    for number in range(1, jobs + 1):
        in_time = in_time and confirm(night, selection.chosen, node_hours)
        if not in_time or number == jobs:
            break
        tonight = _of(night, history(night.database, night.system))
        done = _jobs(tonight)
        fewer = [test for test in selection.chosen if done[name_of(test.name)] <= number]
        if more := _affordable(fewer, node_hours - _spent_node_hours(tonight)):
            say(f"There is room for another job of {text.plural(len(more), 'test')}.")
            in_time = night.run(more)
    if not in_time:
        say(OUT_OF_TIME)
    reported = judged(night)
    if selection.left_out:
        left_out = f"Left out, as the budget had no room: {', '.join(test.name for test in selection.left_out)}."
        reported = replace(reported, remarks=(*reported.remarks, left_out))
    sys.stdout.write(summary.as_text(reported))
    sys.stdout.flush()
    keep(night, reported)
    return reported


def confirm(night: NightRun, chosen: Sequence[NightlyTest], node_hours: float = math.inf) -> bool:
    """Run tests that look worse again, until there are ENOUGH jobs of each; returns whether there was time for it."""
    known = references(night.system)
    by_name = {name_of(test.name): test for test in chosen}
    jobs = -1
    while True:
        found = history(night.database, night.system)
        tonight = _of(night, found)
        if len(tonight) == jobs:
            return True  # ReFrame has said why it ran nothing
        jobs = len(tonight)
        before = replace(found, nights=tuple(one for one in found.nights if one.name != night.name))
        done = _jobs(tonight)
        few = {key: of for key, of in _by_key(tonight).items() if done[key.name] < ENOUGH}
        worse = (by_name.get(key.name) for key in suspects(before, known, few))
        again = _affordable([test for test in worse if test], node_hours - _spent_node_hours(tonight))
        if not again:
            return True
        say(f"Looks worse, so it is run again: {', '.join(test.name for test in again)}.")
        if not night.run(again):
            return False


def judged(night: NightRun) -> NightReport:
    """Judge a night. Raises RunError for one that has left no results at all."""
    found = history(night.database, night.system)
    if not _of(night, found):
        raise RunError("The night has left no results: ReFrame's own words say why.")
    (reported,) = night_reports(found.until(night.name), references(night.system))
    return reported


def report(night: NightRun) -> None:
    """Build the report of all results. If that fails it is said, and changes no verdict."""
    command = [sys.executable, "-P", "-m", "reports", "build", "--results", "results", "--out", "site"]
    try:
        done = subprocess.run(
            command, cwd=night.folder, capture_output=True, text=True, timeout=REPORT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        say(f"The report took longer than {REPORT_TIMEOUT_S} s and was given up.")
        return
    if done.returncode:
        last = (done.stderr.strip() or "no word of why").splitlines()[-1]
        say(f"The report could not be built: {last}")
    else:
        say(f"The report is {night.folder / 'site' / 'index.html'}.")


def say(sentence: str) -> None:
    """Write a sentence to standard error, beside ReFrame's own words."""
    sys.stderr.write(f"nightly: {sentence}\n")
    sys.stderr.flush()


def keep(night: NightRun, reported: NightReport) -> None:
    """Write the night's summary in each form. Whatever prevents that is said, and changes no verdict."""
    forms: tuple[Callable[[NightReport], str], ...] = (
        summary.as_text, summary.as_markdown, summary.as_junit, summary.as_json
    )  # fmt: skip
    try:
        for ending, form in zip(("txt", "md", "xml", "json"), forms, strict=True):
            for name in (night.name, "latest"):
                write_text(_folder(night) / f"{name}.{ending}", form(reported))
        say(f"The summary is {_folder(night) / night.name}.txt, .md, .xml (JUnit) and .json.")
    except Exception as error:  # an error here would say that the machine got worse
        say(f"The summary could not be written: {error}")


def _folder(night: NightRun) -> Path:
    return night.folder / "results" / "nights" / night.system


def _say_selection(night: NightRun, selection: Selection, node_hours: float) -> None:
    say(
        f"Night {night.name} of {night.system}: {len(selection.chosen)} tests, {selection.node_hours:.2g} of "
        f"{node_hours:g} node-hours."
    )
    for test in selection.left_out:
        say(f"  left out: {test.name}, {test.whole_hours:.2g} node-hours {test.by}")


def _affordable(several: Iterable[NightlyTest], node_hours: float) -> list[NightlyTest]:
    return list(select(list(several), node_hours).chosen)


def _of(night: NightRun, found: History) -> Sequence[NightJob]:
    return next((one.jobs for one in found.nights if one.name == night.name), ())


def _spent_node_hours(tonight: Iterable[NightJob]) -> float:
    return sum(job.node_seconds for job in tonight) / HOUR_S


def _jobs(tonight: Iterable[NightJob]) -> Counter[tuple[str, str]]:
    return Counter(job.key.name for job in tonight)


def _by_key(jobs: Iterable[NightJob]) -> dict[Key, list[NightJob]]:
    found: dict[Key, list[NightJob]] = {}
    for job in jobs:
        if job.figures:
            found.setdefault(job.key, []).append(job)
    return found
