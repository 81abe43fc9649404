"""Did last night's update slow us down? Selects, runs, judges and reports.

    ci/nightly --system perlmutter --node-hours 4
    ci/nightly --system vcluster --node-hours 2 --time-limit 1h -- -S iterations=20
    ci/nightly --against HEAD~5        is the engine slower than that commit's? In turns with it, within minutes

Of the tests with the tag nightly it runs the most valuable ones whose node-hours, by earlier runs or else by their time
limits, fit the budget, and names what was left out. What is left of the budget goes into more jobs of each, which make
small changes visible, and into those that look worse: a job alone proves nothing. Then every figure is judged against
systems/references/NAME.yaml and the nights before (par4d verdict), and a summary is written as text, Markdown and JUnit
to results/nights/NAME/, and the report to site/. Words after -- are ReFrame's. --against runs no such night: both
engines take turns in the same jobs (suites/against.py), so that the machine cancels, round by round until each test is
decided.

exit code: 0 nothing new got worse, 1 an episode opened or a test failed, 2 couldn't judge all of it.
"""

import fcntl
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import systems
from command_line import Parser
from engine.errors import EngineError, UsageError
from night.against import JOBS, NODE_HOURS, against
from night.exclude import OPTION, check_scheduler
from night.procedure import report, run, say
from night.session import ROOT, NightRun, night_name
from reports.nights.report import UNKNOWN
from suites.base.feasible import check_here
from suites.launcher import has_action, is_one_of

EXAMPLE = "4h or 1h30m"
SELECTING, SHORT = ("--name", "--checkpath", "--tag", "--system"), re.compile("-[nct]")
"""The night itself gives these options of ReFrame's, besides the one that says what to do."""


def main(words: Sequence[str]) -> int:
    at = [*words, "--"].index("--")
    options, given = parser().parse_args(words[:at]), tuple(words[at + 1 :])
    if selecting := [word for word in given if is_one_of(word, SELECTING, SHORT) or has_action([word])]:
        parser().error(f"{', '.join(selecting)} behind -- would run other tests: leave some out by --exclude")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(UNKNOWN))  # so that jobs are cancelled, as by an interrupt
    try:
        system = systems.named(options.system)
        check_here(system, "measured")
        limit_s = seconds(options.time_limit)
        node_hours, jobs = (2.0, 3) if options.against is None else (NODE_HOURS, JOBS)
        node_hours = node_hours if options.node_hours is None else options.node_hours
        jobs = jobs if options.jobs is None else options.jobs
        if not node_hours > 0 or jobs < 1:
            raise UsageError("--node-hours is more than 0, and --jobs is 1 or more.")
        if options.exclude_slow and options.against is not None:
            raise UsageError(f"Against a commit both engines meet on the same nodes, slow or not: omit {OPTION}.")
        if options.exclude_slow:
            check_scheduler(system, given)
        folder = options.dir.resolve()
        with _locked(folder, system.name):
            night = NightRun(night_name(), system.name, folder, time.monotonic() + limit_s, given)
            night.exclude_slow = options.exclude_slow
            if options.against is not None:
                return against(options.against, night, node_hours, jobs)
            reported = run(night, node_hours, jobs)
            report(night)
        return reported.code
    except (EngineError, OSError) as error:
        say(str(error))
    return UNKNOWN


def parser() -> Parser:
    found = Parser("ci/nightly", __doc__)
    found.add_argument("--system", metavar="NAME", help="which (default: this machine)")
    found.add_argument(
        "--node-hours",
        metavar="N",
        type=float,
        default=None,
        help=f"to spend at most, by estimate (default: 2; against a commit {NODE_HOURS:g})",
    )
    found.add_argument(
        "--jobs",
        metavar="N",
        type=int,
        default=None,
        help=f"of each test, if the budget does (default: 3; against a commit at most {JOBS})",
    )
    found.add_argument(
        "--time-limit",
        metavar="TIME",
        default="4h",
        help=f"of its jobs, waiting in queues included, such as {EXAMPLE} (default: 4h)",
    )
    found.add_argument(
        "--dir",
        metavar="DIR",
        type=Path,
        default=ROOT,
        help="where to run, with results/ and site/ (default: the project's folder)",
    )
    found.add_argument(
        OPTION, action="store_true", help="leave out nodes that earlier nights show to be slow (Slurm), and say which"
    )
    found.add_argument("--against", metavar="COMMIT", help="take turns with the engine of that commit")
    return found


def seconds(limit: str) -> int:
    """Return the seconds of a time limit. Raises UsageError."""
    with suppress(AttributeError):
        if (found := systems.seconds(limit)) > 0:
            return found
    raise UsageError(f"--time-limit is a time such as {EXAMPLE}, but {limit!r} was given.")


def _locked(folder: Path, system: str) -> IO[str]:
    """Return a lock on the system's nights for as long as it is open. Raises UsageError where another run has it."""
    file = folder / "results" / "nights" / f"{system}.lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    lock = file.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        who = file.read_text().strip() or "another ci/nightly"
        raise UsageError(f"The nightly tests of {system} are being run by {who}: wait until that has ended.") from None
    except OSError as error:
        say(f"{file} can't be locked ({error.strerror}), so nothing keeps a second ci/nightly out.")
    lock.truncate(0)
    lock.write(f"process {os.getpid()} of {socket.gethostname()} since {night_name()}")
    lock.flush()
    return lock
