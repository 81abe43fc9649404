"""Procedure of a night: select the most valuable tests that fit its budget, run them, repeat bad ones, judge."""

import math
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from engine.errors import RunError, UsageError
from engine.files import write_text
from night.exclude import leave_out
from night.session import NightlyTest, NightRun
from reports import text
from reports.nights.exports import as_json, as_openmetrics
from reports.nights.judge import suspects
from reports.nights.report import NightReport, as_junit, as_markdown, as_text, night_reports
from reports.read.history import History, history
from systems.references import name_of, references

FORMS: Mapping[str, Callable[[NightReport], str]] = {
    **{"txt": as_text, "md": as_markdown, "xml": as_junit, "json": as_json, "metrics": as_openmetrics}
}
"""Endings of a night's summaries, and what writes each."""
HOUR_S = 3600.0
MARGIN = 1.25
"""The next job may take so many times as long as earlier ones did."""
ENOUGH = 3
"""Slow jobs of a test after which a night runs no more: a whole night can be off."""
REPORT_TIMEOUT_S = 1800
BY_LIMIT = "by its time limit"
NO_RESULTS = "The night has left no results: ReFrame's own words say why."
OUT_OF_TIME = "The night's time limit was reached: what was still to be run was left out."


def run(night: NightRun, node_hours: float, jobs: int) -> NightReport:
    """Run a whole night and write the verdicts to standard output. jobs: how many each test gets if the budget does.

    Raises UsageError for a budget without room, RunError where there are no results.
    """
    for old in night.summaries.glob("latest.*"):
        old.unlink()  # nobody may take it for tonight's
    references(night.system)  # a bad file is reported before anything is spent
    described, past = night.describe(), history(night.database, night.system)
    every, remarks = nightly_tests(described, past), list[str]()
    chosen = choose(night, every, node_hours)
    if night.exclude_slow:
        remarks.append(leave_out(night, described, chosen, past))
        say(remarks[-1])
    run_jobs(night, chosen, node_hours, jobs)
    reported = judged(night)
    if left_out := ", ".join(test.name for test in every if test not in chosen):
        remarks.append(f"Left out, as the budget had no room: {left_out}.")
    reported = replace(reported, remarks=(*reported.remarks, *remarks))
    sys.stdout.write(as_text(reported))
    sys.stdout.flush()
    keep(night, reported)
    return reported


def nightly_tests(described: Iterable[Mapping[str, Any]], history: History) -> list[NightlyTest]:
    """Return the tests that ReFrame describes, with their costs by earlier runs where there are any."""
    earlier, found = defaultdict[tuple[tuple[str, str], str], list[float]](list), []
    for job in history.jobs:
        if job.figures:
            earlier[job.key.name, job.key.partition].append(job.node_seconds / HOUR_S)
    for test in described:
        name, runs, hours, minutes = str(test["display_name"]), 0, 0.0, 0.0
        if all(case["skipped"] for case in test["cases"]):
            say(f"Skipped: {name}: {test['cases'][0]['skipped']}")
            continue
        for case in test["cases"]:
            before = earlier.get((name_of(name), case["partition"]), [])
            runs += len(before)
            of_case = MARGIN * median(before) if before and not case["skipped"] else float(case["node_hours"])
            hours += of_case
            minutes += 60 * of_case / (case["nodes"] or 1)
        first = sum(one["node_hours"] for one in test["fixture_jobs"])
        minutes += sum(60 * one["node_hours"] / (one["nodes"] or 1) for one in test["fixture_jobs"])
        by = BY_LIMIT
        if runs:
            by = f"by {text.plural(runs, 'earlier job')}"
            by += ", and by the time limits of what it needs first" if first else ""
        found.append(NightlyTest(name, str(test["hashcode"]), hours + first, by, int(test["worth"]), minutes))
    return found


def select(every: Iterable[NightlyTest], node_hours: float) -> list[NightlyTest]:
    """Choose the most valuable tests that fit together; of equally valuable ones the cheapest go first."""
    chosen = list[NightlyTest]()
    for test in sorted(every, key=lambda one: (-one.worth, one.node_hours, one.name)):
        if test.node_hours <= node_hours:
            chosen.append(test)
            node_hours -= test.node_hours
    return chosen


def choose(night: NightRun, every: Sequence[NightlyTest], node_hours: float, jobs: int = 1) -> list[NightlyTest]:
    """Choose what the budget has room for, so many jobs of each, and say what that is and what is left out. Raises
    UsageError for a budget without room.
    """
    chosen, system = select(every, node_hours / jobs), night.system
    if not every:
        raise UsageError(f"No nightly test of {system} can run there, for the reasons above.")
    if not chosen:
        least = min(every, key=lambda test: test.node_hours)
        takes = f"the smallest, {least.name}, takes {jobs * least.node_hours:.2g} {least.by}"
        raise UsageError(f"{node_hours:g} node-hours have room for no nightly test of {system}: {takes}.")
    tests = text.plural(len(chosen), "test") + (f", {jobs} jobs of each" if jobs > 1 else "")
    hours = jobs * sum(test.node_hours for test in chosen)
    say(f"Night {night.name} of {system}: {tests}, {hours:.2g} of {node_hours:g} node-hours.")
    for test in every:
        if test not in chosen:
            say(f"  left out: {test.name}, {jobs * test.node_hours:.2g} node-hours {test.by}")
    return chosen


def run_jobs(night: NightRun, chosen: Sequence[NightlyTest], node_hours: float = math.inf, jobs: int = 1) -> bool:
    """Run a job of each test, then more of those that look worse, before other tests get as many as `jobs`, as far as
    the budget and the night's time go; returns whether there was time.
    """
    again, stored = list(chosen), 0
    while again:
        if not night.run(again):
            say(OUT_OF_TIME)
            return False
        found = history(night.database, night.system)
        tonight = found.find(night.name)
        if tonight is None or len(tonight.jobs) == stored:
            return True  # ReFrame has said why it ran nothing
        stored, done = len(tonight.jobs), Counter(job.key.name for job in tonight.jobs)
        before = replace(found, nights=tuple(one for one in found.nights if one is not tonight))
        few = [job for job in tonight.jobs if done[job.key.name] < ENOUGH]
        worse = {key.name for key in suspects(before, references(night.system), few)}
        left = node_hours - sum(job.node_seconds for job in tonight.jobs) / HOUR_S
        if again := select([test for test in chosen if name_of(test.name) in worse], left):
            say(f"Looks worse, so it is run again: {', '.join(test.name for test in again)}.")
        elif again := select([test for test in chosen if done[name_of(test.name)] < jobs], left):
            say(f"There is room for another job of {', '.join(test.name for test in again)}.")
    return True


def judged(night: NightRun) -> NightReport:
    """Judge a night. Raises RunError for one that has left no results at all."""
    every = night_reports(history(night.database, night.system), references(night.system), night=night.name)
    if not every:
        raise RunError(NO_RESULTS)
    return every[0]


def report(night: NightRun) -> None:
    """Build the report of all results. If that fails it is said, and changes no verdict."""
    command = [sys.executable, "-P", "-m", "reports", "build", "--results", "results", "--out", "site"]
    try:
        built = subprocess.run(
            command, cwd=night.folder, stdout=subprocess.PIPE, text=True, timeout=REPORT_TIMEOUT_S, check=True
        )
        say(f"The report is {night.folder / 'site' / 'index.html'}: {built.stdout.splitlines()[0]}.")
    except subprocess.SubprocessError as error:
        say(f"The report could not be built: {error}")


def say(sentence: str) -> None:
    """Write a sentence to standard error, beside ReFrame's own words."""
    sys.stderr.write(f"nightly: {sentence}\n")
    sys.stderr.flush()


def keep(night: NightRun, reported: NightReport) -> None:
    """Write the night's summary in each form. Whatever prevents that is said, and changes no verdict."""
    try:
        for ending, form in FORMS.items():
            for name in (night.name, "latest"):
                write_text(night.summaries / f"{name}.{ending}", form(reported))
        say(f"The summary is {night.summaries / night.name}.txt, .md, .xml (JUnit), .json and .metrics (OpenMetrics).")
    except Exception as error:  # an error here would say that the machine got worse
        say(f"The summary could not be written: {error}")
