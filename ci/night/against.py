"""Night against a commit: two engines alternate in the same jobs, whose ratios of step times are judged.

Its jobs are kept apart from those of other nights.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from junitparser import Failure, Skipped, TestCase
from tabulate import tabulate

from engine.errors import RunError, UsageError
from engine.files import write_text
from engine.result.gate import NOTHING_KNOWN, Interval, Outcome, at_most, over_jobs
from engine.result.judges.peers import FEWEST_JOBS
from engine.result.metrics import ratio_over_jobs
from engine.result.provenance import PACKED
from night.procedure import NO_RESULTS, OUT_OF_TIME, choose, nightly_tests, say
from night.session import ROOT, NightRun
from reports import text
from reports.nights.report import FINE, NOTHING_KEPT, UNKNOWN, WORSE, junit_file
from reports.read.history import NightJob, history
from systems.references import name_of

LIMIT = 1.01
"""Ratio of step times beyond all of whose interval a test is slower."""
JOBS = 6
"""Jobs of each test, which tell by how much one set of processes differs from another."""
FOLDER = Path("results") / ".against"
"""Hidden, so that no report takes it for a night; it has the checkouts of commits, too."""
FIGURE = "paired_ratio"
GIT_TIMEOUT_S = 120
SAID: dict[Outcome, str] = {"fail": "slower", "pass": "no slower", "undecided": "undecided"}


@dataclass(frozen=True, slots=True)
class Point:
    """Ratios of a test's step times by the commit's, one a job."""

    name: str
    ratios: tuple[float, ...] = ()
    failed: bool = False
    reason: str = ""
    """why it failed, or has no ratios"""
    of: int = 1
    """number of tests judged together, which share the chance to be wrong"""

    @property
    def interval(self) -> Interval:
        return over_jobs(self.ratios, looks=self.of) if self.ratios else NOTHING_KNOWN

    @property
    def outcome(self) -> Outcome:
        """Outcome of the test: failed jobs count as slower."""
        return "fail" if self.failed else at_most(self.interval, LIMIT)


def against(commit: str, night: NightRun, node_hours: float, jobs: int) -> int:
    """Run jobs of each test that the budget has room for, and judge them; returns the exit code. night: a night of the
    system, below whose folder its jobs get one of their own. Raises UsageError for what is no commit or too few jobs,
    RunError where there are no results.
    """
    if jobs < FEWEST_JOBS:
        raise UsageError(f"--jobs is at least {FEWEST_JOBS} against a commit, as fewer tell nothing.")
    out = night.folder / "results" / "nights" / night.system / "against.xml"
    out.unlink(missing_ok=True)  # nobody may take it for this night's
    name, folder = full_name(commit), night.folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    select = ("--checkpath", str(ROOT / "suites" / "against.py"))
    settings = ("--setvar", f"Against.checkout={checked_out(name, folder)}")
    night = replace(night, folder=folder, select=select, settings=settings)
    every = nightly_tests(night.describe(), history(night.database, night.system))
    chosen = choose(night, every, node_hours, jobs)
    in_time = replace(night, reframe=(*night.reframe, "--repeat", str(jobs))).run(chosen)
    if not in_time:
        say(OUT_OF_TIME)
    tonight = history(night.database, night.system).find(night.name)
    if tonight is None:
        raise RunError(NO_RESULTS)
    found = points([name_of(test.name) for test in chosen], tonight.jobs)
    sys.stdout.write(as_text(name, found))
    sys.stdout.flush()
    try:
        write_text(out, as_junit(night.system, found))
        say(f"The JUnit file is {out}.")
    except OSError as error:
        say(f"The JUnit file could not be written: {error}")
    if any(point.outcome == "fail" for point in found):
        return WORSE
    return FINE if in_time and all(point.outcome == "pass" for point in found) else UNKNOWN


def full_name(commit: str) -> str:
    """Return a commit's whole name. Raises UsageError."""
    return _git("rev-parse", "--verify", "--end-of-options", f"{commit}^{{commit}}")


def checked_out(name: str, folder: Path) -> Path:
    """Return the folder with that commit's files, made once. Raises UsageError where git can't."""
    there = folder / name
    if not there.exists():
        with TemporaryDirectory(dir=folder) as made:
            index, whole = {"GIT_INDEX_FILE": f"{made}/index"}, Path(made, "whole")
            _git("read-tree", name, environment=index)
            _git("checkout-index", "--all", f"--prefix={whole}/", environment=index)
            (whole / PACKED).write_text(json.dumps([name, False]))
            try:
                whole.rename(there)
            except OSError:  # another system's night was faster
                if not there.exists():
                    raise
    return there


def points(chosen: Sequence[tuple[str, str]], jobs: Sequence[NightJob]) -> list[Point]:
    """Gather the jobs of the tests that were chosen, by their names, without those that are skipped here."""
    by_name: dict[tuple[str, str], list[NightJob]] = {name: [] for name in chosen}
    for job in jobs:
        by_name.setdefault(job.key.name, []).append(job)
    ran = {name: of for name, of in by_name.items() if not of or any(job.figures or job.failed for job in of)}
    return [_point(name, of, len(ran)) for (_, name), of in ran.items()]


def _point(name: str, jobs: Sequence[NightJob], of: int) -> Point:
    failed = [job for job in jobs if job.failed]
    reason = f"{len(failed)} of {text.plural(len(jobs), 'job')} failed: {failed[0].reason}" if failed else ""
    ratios = tuple(job.figures[FIGURE][0] for job in jobs if FIGURE in job.figures)
    return Point(name.removeprefix("point="), ratios, bool(failed), reason or ("" if ratios else NOTHING_KEPT), of)


def as_text(commit: str, found: Sequence[Point]) -> str:
    """Write a table for a person, and what it means."""
    rows = [
        [
            _verdict(point),
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


def as_junit(system: str, found: Sequence[Point]) -> str:
    """Write JUnit: a test that got slower or failed is a failure, an undecided one is skipped."""
    cases = []
    for point in found:
        case = TestCase("time of a step", classname=text.clean(point.name))
        words = text.clean(f"{_verdict(point)}: {point.reason or point.interval}", 2000)
        if point.outcome != "pass":
            case.result = [Failure(words) if point.outcome == "fail" else Skipped(words)]
        cases.append(case)
    return junit_file(f"{system} against a commit", cases, datetime.now(UTC))


def _verdict(point: Point) -> str:
    return "failed" if point.failed else SAID[point.outcome]


def _git(*words: str, environment: Mapping[str, str] = MappingProxyType({})) -> str:
    """Ask git about this checkout. environment: added to this process's. Raises UsageError with git's last words."""
    command = ["git", "-C", str(ROOT), *words]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
            env=os.environ | environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"--against asks git about {ROOT}, which fails: {error}.") from None
    if done.returncode:
        last = (done.stderr.strip() or "no word of why").splitlines()[-1]
        raise UsageError(f"--against takes a commit of {ROOT}, but git says: {last}")
    return done.stdout.strip()
