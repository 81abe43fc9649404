"""What a night does: select, run, run again what looks worse, judge, and keep the summary."""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

from engine.errors import EngineError, RunError, UsageError
from engine.files import write_text
from night.selection import HOUR_S, Candidate, Selection, candidates, name_of, select
from night.session import Night
from reports import site
from reports.nights import summary
from reports.nights.history import History, Job, history
from reports.nights.judge import suspects
from reports.nights.told import Told, tell
from systems.references import Key, references

MOST_JOBS = 5
"""Of a test in a night: that many that are slow are no chance."""
OUT_OF_TIME = "The night's time limit was reached: what was still to be run was left out."


def run(night: Night, node_hours: float, jobs: int) -> Told:
    """The whole of it; jobs: of each test, as far as the budget goes. What is judged goes to standard output.

    Raises UsageError for a budget without room, RunError where there are no results.
    """
    references(night.system)  # a bad file is told before anything is spent
    every = candidates(night.describe(), history(night.database, night.system))
    selection = select(every, node_hours)
    if not selection.chosen:
        least = min(every, key=lambda test: test.node_hours)
        raise UsageError(
            f"{node_hours:g} node-hours have room for no nightly test of {night.system}: the smallest, {least.name}, "
            f"takes {least.node_hours:.2g} {least.by}."
        )
    _say_selection(night, selection, node_hours)
    in_time = night.run(test.hashcode for test in selection.chosen)
    for _ in range(1, jobs):
        more = _affordable(selection.chosen, node_hours - _spent(_of(night, history(night.database, night.system))))
        if in_time and more:
            say(f"There is room for another job of {len(more)} of the tests.")
            in_time = night.run(test.hashcode for test in more)
    if not in_time:
        say(OUT_OF_TIME)
    told = judge_night(night, selection.chosen if in_time else (), node_hours)
    sys.stdout.write(summary.as_text(told))
    sys.stdout.flush()
    return told


def judge_night(night: Night, chosen: Sequence[Candidate], node_hours: float = math.inf) -> Told:
    """What a night tells, with more jobs of those of its tests that look worse. Raises RunError without results."""
    known, found = references(night.system), history(night.database, night.system)
    by_name = {name_of(test.name): test for test in chosen}
    for _ in range(1, MOST_JOBS):
        tonight = _of(night, found)
        before = replace(found, nights=found.nights[:-1]) if tonight else found
        few = {key: of for key, of in _by_key(tonight).items() if len(of) < MOST_JOBS}
        worse = (by_name.get(name_of(f"{key.test} {key.point}")) for key in suspects(before, known, few))
        again = _affordable([test for test in worse if test], node_hours - _spent(tonight))
        if not again:
            break
        say(f"Looks worse, so it is run again: {', '.join(test.name for test in again)}.")
        if not night.run(test.hashcode for test in again):
            say(OUT_OF_TIME)
            break
        found = history(night.database, night.system)
    if not _of(night, found):
        raise RunError("The night has left no results: ReFrame's own words say why.")
    (told,) = tell(found, known)
    _keep(night, told)
    return told


def report(night: Night) -> None:
    """Build the report of all results. What fails there is told, and no verdict on the night."""
    try:
        page, _ = site.build([night.folder / "results"], night.folder / "site")
    except EngineError as error:
        say(f"The report could not be built: {error}")
    else:
        say(f"The report is {page}.")


def say(sentence: str) -> None:
    """On standard error, beside ReFrame's own words."""
    sys.stderr.write(f"nightly: {sentence}\n")
    sys.stderr.flush()


def _keep(night: Night, told: Told) -> None:
    """Write the night's summary in each form."""
    folder = night.folder / "results" / "nights" / night.system
    for ending, text in (
        ("txt", summary.as_text(told)),
        ("md", summary.as_markdown(told)),
        ("xml", summary.as_junit(told)),
        ("json", summary.as_json([told])),
    ):
        for name in (night.name, "latest"):
            write_text(folder / f"{name}.{ending}", text)
    say(f"The summary is {folder / night.name}.txt, .md, .xml (JUnit) and .json.")


def _say_selection(night: Night, selection: Selection, node_hours: float) -> None:
    say(
        f"Night {night.name} of {night.system}: {len(selection.chosen)} tests, {selection.node_hours:.2g} of "
        f"{node_hours:g} node-hours."
    )
    for test in selection.left_out:
        say(f"  left out: {test.name}, {test.node_hours:.2g} node-hours {test.by}")


def _affordable(several: Iterable[Candidate], node_hours: float) -> list[Candidate]:
    return list(select(list(several), node_hours).chosen)


def _of(night: Night, found: History) -> Sequence[Job]:
    """Its jobs so far."""
    return found.nights[-1].jobs if found.nights and found.nights[-1].name == night.name else ()


def _spent(tonight: Iterable[Job]) -> float:
    """Node-hours."""
    return sum(job.node_seconds for job in tonight) / HOUR_S


def _by_key(jobs: Iterable[Job]) -> dict[Key, list[Job]]:
    found: dict[Key, list[Job]] = {}
    for job in jobs:
        if job.figures:
            found.setdefault(job.key, []).append(job)
    return found
