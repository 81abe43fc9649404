"""Does `ci/nightly` find what got worse, name its culprit, and stay silent while nothing changes? For real.

    python tests/suites/prove_nights.py                   all that follows, in an hour
    python tests/suites/prove_nights.py --only creep      a link that gets slower every night (step, node, software)
    python tests/suites/prove_nights.py --only culprits   40 nights without any change and three faults; 25 minutes
    python tests/suites/prove_nights.py --only culprits --quiet 5    of 25 nights without any change

As root on Linux, on a virtual cluster. Only the machine is small: the jobs are real ones of Slurm, and the judging is
that of any night.

step, creep, node, software: nights with a job each, of which each fault has to be told as what it is: by its shape, the
nodes that explain it, what changed, and its end (planted_nights.py). They go on where they were broken off.

culprits, on a cluster of its own with two nodes: 20 nights make references, and in --quiet more none may open an
episode. Then come three faults; each has to be found, its culprit named, and its episode has to close by itself when it
is mended. A night is one job each of three tests, and more of what looks worse. As these nights are seconds apart, what
disturbs the machine for a minute would be a change of several nights: each waits until the machine is idle, all of them
five minutes at most.

The exit code is 0 if every fault was found, told as what it is and then over, and no quiet night opened an episode, 1
if not, 2 if it couldn't be run.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))
import planted_nights

from engine.errors import EngineError, RunError, UsageError
from engine.result import provenance
from night.procedure import judged, keep, nightly_tests, report, run_jobs, say
from night.session import ROOT, NightRun, night_name
from reports import text
from reports.nights.reference import make
from reports.nights.report import FINE, UNKNOWN, WORSE, NightReport
from reports.read.history import history
from systems import references
from systems.references import FEWEST_JOBS
from virtual_cluster import record

SYSTEM = "vcluster"
CULPRITS = "culprits"
PARTS = (*planted_nights.FAULTS, CULPRITS)
MOST_NIGHTS = 10
"""A fault has to be found, and when it is mended to be over, in so many nights."""
TIME_LIMIT_S = 900.0
"""A night has so long, and so has `ci/cluster`, whose first `up` on a machine installs Debian's packages."""
BUSY, PATIENCE_S = 0.1, 300.0
FIRST, SLOWED = "n0", "n1"
Broken = Callable[[], AbstractContextManager[tuple[str, ...]]]
"""Within it something is broken, and ReFrame takes these options."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something gets worse. named: what tests may be in episodes, each with the culprit that has to be named; the first
    of these has to be.
    """

    title: str
    named: Sequence[tuple[str, str]]
    broken: Broken

    def is_found(self, raised: Sequence[tuple[str, str]]) -> bool:
        """Say whether the tests of episodes, each with its culprit, name the fault and nothing else."""
        fits = [[test == of and part.startswith(who) for of, who in self.named] for test, part in raised]
        return all(map(any, fits)) and any(first for first, *_ in fits)


@contextmanager
def slow_link() -> Iterator[tuple[str, ...]]:
    cluster("link", "900mbit")
    try:
        yield ()
    finally:
        cluster("link", "1gbit")


@contextmanager
def other_work() -> Iterator[tuple[str, ...]]:
    words = ["taskset", "--cpu-list", str(max(os.sched_getaffinity(0))), "sh", "-c", "while :; do :; done"]
    with subprocess.Popen(words) as load:
        try:
            yield ()
        finally:
            load.kill()


ONE_THREAD = ("--setvar", "Peak.env_vars=OMP_NUM_THREADS:1,OMP_WAIT_POLICY:passive")
FAULTS = (
    Fault("the link at 900 instead of 1000 Mbit/s", [("Bandwidth", "the link"), ("TwoNodes", "the link")], slow_link),
    Fault("one thread instead of two", [("Peak", "compute")], lambda: nullcontext(ONE_THREAD)),
    # The canary tells of it, too. Bandwidth doesn't know which node it is, and Peak takes the processors of both.
    Fault(
        f"other work on {SLOWED}",
        [("TwoNodes", f"one node: {SLOWED}"), ("Bandwidth", "the machine"), ("Peak", "")],
        other_work,
    ),
)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", action="append", choices=PARTS, help="this part; may be repeated")
    options.add_argument("--quiet", type=int, default=20, help="nights of culprits that may open no episode")
    options.add_argument("--keep", type=Path, help="folder of the other parts (default: results/.planted-COMMIT)")
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(UNKNOWN))  # so that the cluster ends, as by an interrupt
    chosen = [part for part in PARTS if part in (given.only or PARTS)]
    try:
        if sys.platform != "linux" or os.geteuid() != 0:
            raise UsageError("The proof makes a virtual cluster, which takes Linux and root.")
        code = prove_planted([part for part in chosen if part != CULPRITS], given.keep)
        return max(code, prove_culprits(given.quiet)) if CULPRITS in chosen else code
    except EngineError as error:
        say(str(error))
        return UNKNOWN


def prove_planted(names: Sequence[str], keep: Path | None) -> int:
    """Run the nights of these faults; returns the exit code. Raises UsageError, RunError."""
    if not names:
        return FINE
    commit, _ = provenance.git_state(ROOT)
    folder = (keep or ROOT / "results" / f".planted-{(commit or 'unknown')[:12]}").resolve()
    prepare(folder)
    there = record.load()
    if there and there.shape.nodes < planted_nights.NODES_NEEDED:
        raise UsageError("The cluster that is up has too few nodes: run `ci/cluster down` first.")
    try:
        if not there:
            cluster("up", "--nodes", str(planted_nights.NODES_NEEDED), "--ranks-per-node", "1")
        right = [planted_nights.prove(name, a_night(folder), cluster) for name in names]
    finally:
        cluster(*(("link", there.shape.link) if there else ("down",)))
    return FINE if all(right) else WORSE


def prove_culprits(quiet: int) -> int:
    """Run nights, and faults whose culprit has to be named, on a cluster of their own; returns the exit code.

    Raises UsageError, RunError.
    """
    if record.STATE.exists():
        raise UsageError("A virtual cluster is up already, and the proof makes its own: run `ci/cluster down` first.")
    folder = ROOT / "results" / f".prove-nights-{night_name()}"  # hidden: no report of the project's has it
    prepare(folder)
    try:
        cluster("up", "--nodes", "2", "--ranks-per-node", "1")
        pin(FIRST, min(os.sched_getaffinity(0)))
        pin(SLOWED, max(os.sched_getaffinity(0)))
        return nights(folder, quiet)
    finally:
        cluster("down")


def prepare(folder: Path) -> None:
    """Make the folder of nights, with references of its own, for this process and for ReFrame."""
    folder.mkdir(parents=True, exist_ok=True)
    references.FOLDER = folder / "references"
    os.environ |= {
        "PAR4D_REFERENCES": str(references.FOLDER),
        "RFM_CONFIG_FILES": str(ROOT / "systems" / "settings.py"),
        "PYTHONPATH": f"{ROOT}:{ROOT / 'ci'}",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def nights(folder: Path, count: int) -> int:
    """Run all nights, and write what they have shown to standard output."""
    began, first, waited_s = time.monotonic(), a_night(folder), 0.0
    tests = nightly_tests(first.describe(), history(first.database, SYSTEM))

    def night(what: str, broken: Broken = lambda: nullcontext(())) -> NightReport:
        nonlocal waited_s
        waited_s += wait_until_idle(PATIENCE_S - waited_s)
        with broken() as options, (folder / "reframe.out").open("a") as log, redirect_stderr(log):
            one = a_night(folder, *options)
            if not run_jobs(one, tests):
                raise RunError(f"A night of the proof took longer than {TIME_LIMIT_S:g} s.")
        reported = judged(one)
        keep(one, reported)
        say(f"proof, {time.monotonic() - began:.0f} s, {what}: {reported.headline}")
        return reported

    for number in range(FEWEST_JOBS):
        night(f"night {number + 1} of {FEWEST_JOBS} for the references")
    make(history(first.database, SYSTEM))
    quiet = [night(f"quiet night {number + 1} of {count}") for number in range(count)]
    blamed = [one.night.name for one in quiet if one.opened]
    said = [f"{'FALSE ALARMS: ' + ', '.join(blamed) if blamed else 'no alarm'} in {count} quiet nights"]
    found, told = list[bool](), set[int]()
    for fault in FAULTS:
        raised, number = list[tuple[str, str]](), 0
        while number < MOST_NIGHTS and not fault.is_found(raised):
            number += 1
            reported = night(f"{fault.title}, night {number}", fault.broken)
            raised = parts(reported, told)
        word, mended = "found" if fault.is_found(raised) else "NOT FOUND, OR BLAMED ON SOMETHING ELSE", 0
        while mended < MOST_NIGHTS and is_open(reported):
            mended += 1
            reported = night(f"{fault.title} mended, night {mended}")
        over = "STILL OPEN" if is_open(reported) else "over"
        told |= {one.number for one in reported.episodes}
        found.append(fault.is_found(raised) and not is_open(reported))
        said += [
            f"{fault.title}: {word} after {text.plural(number, 'night')}, {over} after {mended} more without it",
            *(f"    {test}: {part}" for test, part in raised),
        ]
    report(first)
    sys.stdout.write("\n".join(["", *said, f"{time.monotonic() - began:.0f} s; all nights are in {folder}", ""]))
    return FINE if all(found) and not blamed else WORSE


def parts(of: NightReport, told: Set[int]) -> list[tuple[str, str]]:
    """Give each test with its culprit of the episodes that were not told before, by their number."""
    return [part for one in of.episodes if one.number not in told for part in one.parts]


def is_open(of: NightReport) -> bool:
    return bool(of.opened or of.still_open)


def a_night(folder: Path, *options: str) -> NightRun:
    checks = ("--checkpath", str(Path(__file__).with_name("prove_nights_tests.py")))
    ends = time.monotonic() + TIME_LIMIT_S
    return NightRun(night_name(), SYSTEM, folder, ends, options, checks)


def wait_until_idle(most_s: float) -> float:
    """Wait until the machine's processors are busy for less than BUSY of a second, a hypervisor's other guests
    included; returns how long that took.
    """
    began, busy = time.monotonic(), 1.0
    while busy > BUSY and time.monotonic() - began < most_s:
        before = processor_times()
        time.sleep(1)
        after = processor_times()
        busy = 1 - (after[3] - before[3]) / max(sum(after) - sum(before), 1)
    return time.monotonic() - began


def processor_times() -> list[int]:
    """Give ticks of all processors by what they have done, the fourth those of being idle: see proc_stat(5)."""
    return [int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:9]]


def pin(node: str, processor: int) -> None:
    """Give a node one processor alone, so that work there is not in the way of the other node."""
    there = record.load()
    assert there is not None
    space = Path(f"/proc/{there.processes[node].pid}/ns/pid").readlink()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if (process / "ns/pid").readlink() == space:
                for thread in (process / "task").iterdir():
                    os.sched_setaffinity(int(thread.name), {processor})


def cluster(*words: str) -> None:
    """Run ci/cluster. Raises RunError."""
    try:
        subprocess.run([str(ROOT / "ci" / "cluster"), *words], timeout=TIME_LIMIT_S, check=True)
    except subprocess.SubprocessError as error:
        raise RunError(f"The proof's cluster can't be used: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
