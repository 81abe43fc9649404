"""A night against a commit: the engine of today takes turns with that of a commit in the same jobs, so that one night
tells what many nights of a restless machine can't.

Its jobs lie apart from those of other nights. Each gives a ratio of step times; the interval over jobs is judged.
"""

import json
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from junitparser import Failure, JUnitXml, Skipped, TestCase, TestSuite
from tabulate import tabulate

from engine.errors import RunError, UsageError
from engine.files import write_text
from engine.result.gate import Outcome, at_most
from engine.result.interval import NOTHING_KNOWN, Interval, over_jobs
from engine.result.metrics import ratio_over_jobs
from engine.result.provenance import PACKED
from night.procedure import OUT_OF_TIME, say
from night.selection import nightly_tests, select
from night.session import ROOT, NightRun
from reports import text
from reports.nights.history import NightJob, history
from reports.nights.report import FINE, UNKNOWN, WORSE

LIMIT = 1.01
"""A step may take so many times as long as the commit's: all of the interval beyond it is slower."""
JOBS = 6
"""So many jobs of each test tell by how much one set of processes differs from another."""
FOLDER = Path("results") / ".against"
"""Hidden, so that no report takes it for a night; it has the checkouts of commits, too."""
GIT_TIMEOUT_S = 120
SAID: dict[Outcome, str] = {"fail": "slower", "pass": "no slower", "undecided": "undecided"}


@dataclass(frozen=True, slots=True)
class Point:
    """A test has these ratios, one a job, of the step's time by the commit's; reason says why there are none."""

    name: str
    ratios: tuple[float, ...]
    reason: str = ""

    @property
    def interval(self) -> Interval:
        return over_jobs(self.ratios) if self.ratios else NOTHING_KNOWN

    @property
    def outcome(self) -> Outcome:
        return at_most(self.interval, LIMIT)


def against(commit: str, night: NightRun, node_hours: float, jobs: int) -> int:
    """Run jobs of each test that the budget has room for, and judge them; returns the exit code. night: its folder is
    that of all nights. Raises UsageError for what is no commit, RunError where there are no results.
    """
    name = full_name(commit)
    night.folder /= FOLDER
    night.folder.mkdir(parents=True, exist_ok=True)
    night.select = ("--checkpath", str(ROOT / "suites" / "earlier.py"))
    checkout = ("--setvar", f"Earlier.checkout={checked_out(name, night.folder)}")
    night.reframe = (*checkout, "--setvar", "canary=no", *night.reframe)
    every = nightly_tests(night.describe(), history(night.database, night.system))
    selection = select(every, node_hours / jobs)
    if not selection.chosen:
        raise UsageError(f"{node_hours:g} node-hours have no room for {text.plural(jobs, 'job')} of any test.")
    for test in selection.left_out:
        say(f"  left out: {test.name}, {jobs * test.whole_hours:.2g} node-hours {test.by}")
    say(f"{text.plural(len(selection.chosen), 'test')}, {text.plural(jobs, 'job')} of each, against {name[:12]}.")
    night.reframe = (*night.reframe, "--repeat", str(jobs))
    if not night.run(selection.chosen):
        say(OUT_OF_TIME)
    nights = history(night.database, night.system).nights
    found = points(job for one in nights if one.name == night.name for job in one.jobs)
    if not found:
        raise RunError("The night has left no results: ReFrame's own words say why.")
    sys.stdout.write(as_text(name, found))
    sys.stdout.flush()
    out = night.folder.parent / "nights" / night.system / "against.xml"
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, as_junit(night, found))
    say(f"The JUnit file is {out}.")
    if any(point.outcome == "fail" or point.reason for point in found):
        return WORSE
    return FINE if all(point.outcome == "pass" for point in found) else UNKNOWN


def full_name(commit: str) -> str:
    """Give a commit's whole name. Raises UsageError."""
    done = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    if done.returncode:
        raise UsageError(f"{commit} is no commit of {ROOT}: `git log --oneline` there names some.")
    return done.stdout.decode().strip()


def checked_out(name: str, folder: Path) -> Path:
    """Give the folder with that commit's files, which is made once."""
    there = folder / name
    if not there.exists():
        with TemporaryDirectory(dir=folder) as made:
            packed, whole = Path(made, "packed.tar"), Path(made, "whole")
            if _git("archive", "--output", str(packed), name).returncode:
                raise RunError(f"git can't archive {name}.")
            with tarfile.open(packed) as files:
                files.extractall(whole, filter="data")
            (whole / PACKED).write_text(json.dumps([name, False]))
            whole.rename(there)
    return there


def points(jobs: Iterable[NightJob]) -> list[Point]:
    """Gather jobs by test, without those that were skipped."""
    by_name: dict[str, list[NightJob]] = {}
    for job in jobs:
        if job.figures or job.failed:
            by_name.setdefault(job.key.point.removeprefix("point="), []).append(job)
    return [_point(name, of) for name, of in by_name.items()]


def _point(name: str, jobs: Sequence[NightJob]) -> Point:
    failed = [job for job in jobs if job.failed]
    reason = f"{len(failed)} of {text.plural(len(jobs), 'job')} failed: {failed[0].reason}" if failed else ""
    return Point(name, tuple(job.figures["paired_ratio"][0] for job in jobs if "paired_ratio" in job.figures), reason)


def as_text(commit: str, found: Sequence[Point]) -> str:
    """Write a table for a person, and what it means."""
    rows = [
        [
            "failed" if point.reason else SAID[point.outcome],
            point.name,
            f"{ratio_over_jobs(point.ratios):.3f}" if point.ratios else "",
            f"{point.interval.low:.3f} to {point.interval.high:.3f}" if len(point.ratios) > 1 else "not known",
            len(point.ratios),
            text.clean(point.reason, 400),
        ]
        for point in found
    ]
    heads = ["Verdict", "Test", "Step by the commit's", "Interval (95 %)", "Jobs", "Why"]
    return (
        f"{tabulate(rows, heads, 'plain', disable_numparse=True)}\n\nA step takes so many times as long as that of "
        f"{commit[:12]}: slower if all of the interval is above {LIMIT:g}, no slower if none is.\n"
    )


def as_junit(night: NightRun, found: Sequence[Point]) -> str:
    """A test that got slower or failed is a failure, an undecided one is skipped."""
    suite = TestSuite(f"par4d {night.system} against a commit")
    for point in found:
        case = TestCase("time of a step", classname=text.clean(point.name))
        words = text.clean(point.reason or f"{SAID[point.outcome]}: {point.interval}", 2000)
        if point.reason or point.outcome == "fail":
            case.result = [Failure(words)]
        elif point.outcome == "undecided":
            case.result = [Skipped(words)]
        suite.add_testcase(case)
    whole = JUnitXml()
    whole.add_testsuite(suite)
    whole.update_statistics()
    return f"{whole.tostring().decode()}\n"


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            ["git", "-C", str(ROOT), *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_TIMEOUT_S,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        raise RunError(f"git can't be asked about {ROOT}.") from None
