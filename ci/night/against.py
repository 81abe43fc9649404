"""Night against a commit: two engines alternate in the same jobs, whose ratios of step times are judged.

It runs round by round, a job of each test in each. From FIRST_LOOK rounds on, tests are judged after each, by intervals
that count how often that may happen, and a test that is decided is run no more. Its jobs are kept apart from those of
other nights.
"""

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
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
from engine.training.equality import UNEQUAL
from night.procedure import BY_LIMIT, HOUR_S, NO_RESULTS, OUT_OF_TIME, choose, nightly_tests, say, select
from night.session import ROOT, NightlyTest, NightRun
from night.sides import remarks, results_of
from reports import text
from reports.nights.report import FINE, NOTHING_KEPT, UNKNOWN, WORSE, junit_file
from reports.read.history import NightJob, history
from suites.base.running import NO_TURNS
from systems.references import Key, name_of

LIMIT = 1.01
"""Ratio of step times beyond all of whose interval a test is slower."""
JOBS = 8
"""Most jobs of each test, which tell by how much one set of processes differs from another."""
FIRST_LOOK = 5
"""Jobs of a test before it is judged. Where sets of processes are of two kinds, five are all of the slower one in one
night of 32, and four in one of 16. Student's t of few jobs is so wide, too, that looks at them cost more than they
tell: of three tests whose jobs differ by 0.7 % (standard deviation) 3 % are found in 99.6 % of nights with 8 jobs and
looks from the fifth on, in 99.0 % with looks from the third on, and with 6 jobs in 89.6 % (4,000 drawn nights each).
"""
NODE_HOURS = 5.0
"""Room for these jobs of one test of four nodes, by its time limit."""
VERDICTS = (UNEQUAL, NO_TURNS)
"""Words of failures that tell of the engines. Any other failed job is lost, as load may lose it, and run again once."""
FOLDER = Path("results") / ".against"
"""Hidden, so that no report takes it for a night; it has the checkouts of commits, too."""
FIGURE = "paired_ratio"
BOUNDS = ("paired_ratio_low", "paired_ratio_high")
"""Ends of the interval of a job's rounds, where it has enough of them."""
OF_AN_INTERVAL = 1.96
"""Standard errors from the middle of an interval of confidence 0.95 to its ends."""
GIT_TIMEOUT_S = 120
SAID: dict[Outcome, str] = {"fail": "slower", "pass": "no slower", "undecided": "undecided"}


@dataclass(frozen=True, slots=True)
class Looks:
    """Tests of a night and when they are judged, which is fixed before it starts."""

    tests: tuple[tuple[str, str], ...]
    """names"""
    jobs: int
    """most jobs of each"""

    @property
    def first(self) -> int:
        """Number of jobs before a test is judged."""
        return min(FIRST_LOOK, self.jobs)

    @property
    def count(self) -> int:
        """Number of intervals at most, of all tests together, which share the chance to be wrong."""
        return len(self.tests) * (self.jobs - self.first + 1)


@dataclass(frozen=True, slots=True)
class Point:
    """Ratios of a test's step times by the commit's, one a job."""

    name: str
    ratios: tuple[float, ...] = ()
    failed: bool = False
    reason: str = ""
    """why it failed or has no ratios, or how jobs were lost"""
    looks: int = 1
    """Looks.count"""
    is_judged: bool = True
    """whether there are enough jobs for the first look"""
    error: float = 0.0
    """standard error of a job's ratio by its own rounds, as a logarithm: jobs can't agree better but by chance"""

    @property
    def interval(self) -> Interval:
        if not self.ratios or not self.is_judged:
            return NOTHING_KNOWN
        return over_jobs(self.ratios, looks=self.looks, least=self.error)

    @property
    def outcome(self) -> Outcome:
        """Outcome of the test: failed jobs count as slower."""
        return "fail" if self.failed else at_most(self.interval, LIMIT)


def against(commit: str, night: NightRun, node_hours: float, jobs: int) -> int:
    """Run jobs of each test that the budget has room for until it is decided; returns the exit code. night: a night of
    the system, below whose folder its jobs get one of their own. jobs: the most of each test. Raises UsageError for
    what is no commit or too few jobs, RunError where there are no results.
    """
    if jobs < FEWEST_JOBS:
        raise UsageError(f"--jobs is at least {FEWEST_JOBS} against a commit, as fewer tell nothing.")
    out = night.folder / "results" / "nights" / night.system / "against.xml"
    out.unlink(missing_ok=True)  # nobody may take it for this night's
    name, folder = full_name(commit), night.folder / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    suite = ("--checkpath", str(ROOT / "suites" / "against.py"))
    settings = ("--setvar", f"Against.checkout={checked_out(name, folder)}")
    night = replace(night, folder=folder, select=suite, settings=settings)
    every = nightly_tests(night.describe(), history(night.database, night.system))
    chosen = choose(night, every, node_hours, jobs)
    looks = Looks(tuple(name_of(test.name) for test in chosen), jobs)
    say(how_long(chosen, looks))
    in_time = run_rounds(night, chosen, looks, node_hours)
    done = jobs_of(night)
    if not done:
        raise RunError(NO_RESULTS)
    found = list(points(looks, done).values())
    sys.stdout.write(as_text(name, found, remarks(results_of(night.database, night.name))))
    sys.stdout.flush()
    try:
        write_text(out, as_junit(night.system, found))
        say(f"The JUnit file is {out}.")
    except OSError as error:
        say(f"The JUnit file could not be written: {error}")
    if any(point.outcome == "fail" for point in found):
        return WORSE
    return FINE if in_time and all(point.outcome == "pass" for point in found) else UNKNOWN


def how_long(chosen: Sequence[NightlyTest], looks: Looks) -> str:
    """Say how long a night takes, without waiting in queues, and what that is known by."""
    minutes, hours = (sum(getattr(test, what) for test in chosen) for what in ("minutes", "node_hours"))
    limits = sum(test.by == BY_LIMIT for test in chosen)
    by = "by earlier jobs" if not limits else "by time limits" if limits == len(chosen) else "by earlier jobs or limits"
    most, least = (text.plural(math.ceil(count * minutes), "minute") for count in (looks.jobs, looks.first))
    hours *= looks.jobs
    return f"It takes at most {most} and {hours:.2g} node-hours {by}, and {least} if the first look decides all."


def run_rounds(night: NightRun, chosen: Sequence[NightlyTest], looks: Looks, node_hours: float) -> bool:
    """Run a job of each test, round by round, until each is decided or the budget is spent, and a lost job once more;
    returns whether there was time.
    """
    going = list(chosen)
    for number in range(1, looks.jobs + 1):
        began, stored = time.monotonic(), len(jobs_of(night))
        if not _run_within(night, going, node_hours):
            return False
        lost = lost_tests(jobs_of(night)[stored:])
        if again := [test for test in going if name_of(test.name) in lost]:
            say(f"A job was lost and is run again: {', '.join(test.name for test in again)}.")
            if not _run_within(night, again, node_hours):
                return False
        done = jobs_of(night)
        if len(done) == stored:
            break  # ReFrame or the budget's sentence has said why nothing was run
        found = points(looks, done)
        undecided = {name for name, point in found.items() if point.outcome == "undecided" and point.ratios}
        going = [test for test in going if name_of(test.name) in undecided]
        if not going or number == looks.jobs:
            break
        minutes, left = (time.monotonic() - began) / 60, ", ".join(test.name for test in going)
        more = text.plural(math.ceil((looks.jobs - number) * minutes), "minute")
        say(f"Round {number} of {looks.jobs} took {minutes:.1f} minutes, and at most {more} are left, for {left}.")
    return True


def _run_within(night: NightRun, tests: Sequence[NightlyTest], node_hours: float) -> bool:
    """Run a job of each of these tests that the rest of the budget has room for; returns whether there was time."""
    fit = select(tests, node_hours - sum(job.node_seconds for job in jobs_of(night)) / HOUR_S)
    if left_out := ", ".join(test.name for test in tests if test not in fit):
        say(f"The budget has no room for another job of {left_out}.")
    if fit and not night.run(fit):
        say(OUT_OF_TIME)
        return False
    return True


def jobs_of(night: NightRun) -> list[NightJob]:
    """Return the jobs that the night has stored so far."""
    tonight = history(night.database, night.system).find(night.name)
    return tonight.jobs if tonight else []


def is_lost(job: NightJob) -> bool:
    """Say whether a job failed for a reason that tells nothing of the engines."""
    return job.failed and not any(words in job.reason for words in VERDICTS)


def lost_tests(jobs: Sequence[NightJob]) -> set[tuple[str, str]]:
    """Return the names of the tests of which a job is lost and none has a verdict of its own."""
    judged = {job.key.name for job in jobs if job.failed and not is_lost(job)}
    return {job.key.name for job in jobs if is_lost(job)} - judged


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


def points(looks: Looks, jobs: Sequence[NightJob]) -> dict[tuple[str, str], Point]:
    """Gather jobs by the tests' names, without the tests that are skipped here."""
    by_name: dict[tuple[str, str], list[NightJob]] = {name: [] for name in looks.tests}
    for job in jobs:
        by_name.setdefault(job.key.name, []).append(job)
    ran = {name: of for name, of in by_name.items() if not of or any(job.figures or job.failed for job in of)}
    return {name: _point(name[1], of, looks) for name, of in ran.items()}


def _point(name: str, jobs: Sequence[NightJob], looks: Looks) -> Point:
    """Judge a test: it failed where a job has a verdict of its own, or where the one that was lost was lost again."""
    lost, bad, before = [], [], dict[Key, bool]()
    for job in jobs:
        if job.failed and (not is_lost(job) or before.get(job.key)):
            bad.append(job)
        elif job.failed:
            lost.append(job)
        before[job.key] = job.failed
    ratios = tuple(job.figures[FIGURE][0] for job in jobs if FIGURE in job.figures)
    failures, many = sum(job.failed for job in jobs), text.plural(len(jobs), "job")
    reason = "" if ratios else NOTHING_KEPT
    if bad:
        reason = f"{failures} of {many} failed: {bad[0].reason}"
    elif lost:
        reason = f"{failures} of {many} lost: {lost[0].reason}"
    rounds = max(Counter(job.key for job in jobs if FIGURE in job.figures).values(), default=0)
    is_judged = rounds >= looks.first
    return Point(name.removeprefix("point="), ratios, bool(bad), reason, looks.count, is_judged, error_of(jobs))


def error_of(jobs: Sequence[NightJob]) -> float:
    """Return the standard error of these jobs' ratios by the intervals of their rounds, as the root of the mean square;
    0 where too few rounds have none.
    """
    known = [[job.figures[name][0] for name in BOUNDS] for job in jobs if all(name in job.figures for name in BOUNDS)]
    squares = [(math.log(high / low) / (2 * OF_AN_INTERVAL)) ** 2 for low, high in known]
    return math.sqrt(mean(squares)) if squares else 0.0


def as_text(commit: str, found: Sequence[Point], said: Sequence[str] = ()) -> str:
    """Write a table for a person, and what it means. said: sentences on what both sides had in common."""
    rows = [
        [
            _verdict(point),
            point.name,
            f"{ratio_over_jobs(point.ratios):.3f}" if point.ratios else "",
            _words(point.interval),
            len(point.ratios),
            text.clean(point.reason, 400),
        ]
        for point in found
    ]
    heads = ["Verdict", "Test", "Step by the commit's", "Interval (95 %)", "Jobs", "Why"]
    means = (
        f"A step takes so many times as long as that of {commit[:12]}: slower if all of the interval is above "
        f"{LIMIT:g}, no slower if none is. All intervals of a night, one a test and look, hold in 19 of 20 nights."
    )
    return "\n".join([tabulate(rows, heads, "plain", disable_numparse=True), "", means, *said, ""])


def as_junit(system: str, found: Sequence[Point]) -> str:
    """Write JUnit: a test that got slower or failed is a failure, an undecided one is skipped."""
    cases = []
    for point in found:
        case = TestCase("time of a step", classname=text.clean(point.name))
        words = text.clean(f"{_verdict(point)}: {point.reason or _words(point.interval)}", 2000)
        if point.outcome != "pass":
            case.result = [Failure(words) if point.outcome == "fail" else Skipped(words)]
        cases.append(case)
    return junit_file(f"{system} against a commit", cases, datetime.now(UTC))


def _words(interval: Interval) -> str:
    return "not known" if interval == NOTHING_KNOWN else f"{interval.low:.3f} to {interval.high:.3f}"


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
