"""The demo is also the proof: for 40 nights nothing changes on a virtual cluster, and then come three faults.

No night may raise an alarm before the first fault. Each fault has to be found, and its culprit named: a link of 900
instead of 1000 Mbit/s, a thread count that was halved, one node slowed by other work. A night is short here: one job
each of three tests, and more of what looks worse. As these nights are seconds apart, what disturbs the machine for a
minute would be a change of several nights: each waits until fixed work takes as long as ever, all of them five minutes
at most. Only the machine is small: the jobs are real ones of Slurm, and the judging is that of any night.
"""

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from engine.errors import RunError, UsageError
from night.procedure import confirm, judged, keep, report, say
from night.selection import NightlyTest, nightly_tests
from night.session import ROOT, NightRun, night_name
from reports import text
from reports.nights.history import history
from reports.nights.reference import make
from reports.nights.report import FINE, WORSE, NightReport
from systems import references
from virtual_cluster import record

SYSTEM = "vcluster"
QUIET_NIGHTS = 20
MOST_NIGHTS = 10
"""A fault has to be found in so many nights."""
TIME_LIMIT_S = 900.0
CALM, STOLEN, PATIENCE_S = 1.15, 0.05, 300.0
WORK = bytes(1 << 25)
COMMAND_TIMEOUT_S = 900
"""The first `up` on a machine installs Debian's packages."""
FIRST, SLOWED = "n0", "n1"
LINK, PAIR, NODE = "Bandwidth", "TwoNodes", "Peak"
OTHER_WORK = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@dataclass(slots=True)
class Pace:
    """How long fixed work has taken on all processors at once. waited_s: how long nights have waited for calm."""

    seen_s: list[float] = field(default_factory=list)
    waited_s: float = 0.0

    def wait_until_calm(self) -> None:
        """Wait until the work takes as long as it mostly did, and no hypervisor takes any; PATIENCE_S at most."""
        began = time.monotonic()
        while True:
            took_s, stolen = _fixed_work()
            self.seen_s.append(took_s)
            calm = took_s <= CALM * median(self.seen_s) and stolen <= STOLEN
            if calm or self.waited_s + time.monotonic() - began > PATIENCE_S:
                break
            time.sleep(1)
        self.waited_s += time.monotonic() - began


def _fixed_work() -> tuple[float, float]:
    """Time the work on the slowest processor, and return which share of a processor others on the host took."""
    stolen_s, began = _stolen_s(), time.monotonic()
    with ThreadPoolExecutor(len(processors())) as pool:
        took_s = max(pool.map(_seconds_on, processors()))
    return took_s, (_stolen_s() - stolen_s) / (time.monotonic() - began)


def _seconds_on(processor: int) -> float:
    os.sched_setaffinity(0, {processor})  # of this thread
    times = list[float]()
    for _ in range(9):
        began = time.perf_counter()
        hashlib.sha256(WORK).digest()
        times.append(time.perf_counter() - began)
    return median(times)


def _stolen_s() -> float:
    """Give seconds that a hypervisor took of all processors: the eighth number of the first line, see proc_stat(5)."""
    return int(Path("/proc/stat").read_text().split(maxsplit=9)[8]) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that gets worse.

    shown_by: one of these tests has to find it. reaches: the words that the sentence about the culprit has to have, by
    the tests that get worse. busies: whether the machine isn't calm with it.
    """

    title: str
    shown_by: frozenset[str]
    reaches: Mapping[str, str]
    busies: bool = False


FAULTS = {
    "link": Fault(
        "the link at 900 instead of 1000 Mbit/s", frozenset({LINK, PAIR}), {LINK: "the link", PAIR: "the link"}
    ),
    "threads": Fault("one thread instead of two", frozenset({NODE}), {NODE: "compute"}),
    # Peak takes the processors of both nodes.
    "load": Fault(f"other work on {SLOWED}", frozenset({PAIR}), {PAIR: f"one node: {SLOWED}", NODE: "compute"}, True),
}


@dataclass(slots=True)
class Found:
    """What became of a fault. raised: the tests of new alarms, with their sentences."""

    fault: Fault
    nights: int = 0
    raised: list[tuple[str, str]] = field(default_factory=list)

    @property
    def wrongly(self) -> bool:
        """Say whether an alarm came of another test, or names something else."""
        reaches = self.fault.reaches
        return any(test not in reaches or f"Culprit: {reaches[test]}" not in said for test, said in self.raised)

    @property
    def rightly(self) -> bool:
        """Say whether a test of shown_by has named the culprit, and none has named another one."""
        return not self.wrongly and any(test in self.fault.shown_by for test, _ in self.raised)


def demo() -> int:
    """Run the demo; returns 0 if there was no false alarm and every fault was found. Raises UsageError."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise UsageError("The demo makes a virtual cluster, which takes Linux and root.")
    if record.STATE.exists():
        raise UsageError("A virtual cluster is up already, and the demo makes its own: run `ci/cluster down` first.")
    began = time.monotonic()
    folder = ROOT / "results" / f".nightly-demo-{night_name()}"  # hidden: no report of the project's has it
    folder.mkdir(parents=True)
    references.FOLDER = folder / "references"
    os.environ["PAR4D_REFERENCES"] = str(references.FOLDER)  # for ReFrame
    try:
        cluster("up", "--nodes", "2", "--ranks-per-node", "1")
        pin(FIRST, min(processors()))
        pin(SLOWED, max(processors()))
        blamed, found = nights(folder, began)
    finally:
        cluster("down")
    lines = [f"{'no alarm' if not blamed else 'FALSE ALARMS: ' + ', '.join(blamed)} in {QUIET_NIGHTS} quiet nights"]
    for one in found:
        word = "found" if one.rightly else "FOUND, BUT BLAMED ON SOMETHING ELSE" if one.wrongly else "NOT FOUND"
        lines.append(f"{one.fault.title}: {word} after {text.plural(one.nights, 'night')}")
        lines += [f"    {sentence}" for _, sentence in one.raised]
    lines.append(f"{time.monotonic() - began:.0f} s; all nights are in {folder}")
    sys.stdout.write("\n".join(["", *lines]) + "\n")
    return FINE if not blamed and all(one.rightly for one in found) else WORSE


def nights(folder: Path, began: float) -> tuple[list[str], list[Found]]:
    """Run all nights; returns the quiet ones that raised an alarm, and what became of the faults."""
    night = a_night(folder)
    all_tests = nightly_tests(night.describe(), history(night.database, SYSTEM))
    pace = Pace()
    for number in range(QUIET_NIGHTS):
        say(f"demo, {time.monotonic() - began:.0f} s: night {number + 1} of {QUIET_NIGHTS} for the references")
        pace.wait_until_calm()
        quietly(a_night(folder), all_tests)
    make(history(night.database, SYSTEM))
    blamed = []
    for number in range(QUIET_NIGHTS):
        pace.wait_until_calm()
        reported = a_judged(a_night(folder), all_tests)
        say(f"demo, {time.monotonic() - began:.0f} s: quiet night {number + 1} of {QUIET_NIGHTS}: {reported.headline}")
        if reported.alarms:
            blamed.append(reported.night)
    found = []
    for name, fault in FAULTS.items():
        one = Found(fault)
        with broken(name) as options:
            while one.nights < MOST_NIGHTS and not one.rightly:
                one.nights += 1
                if not fault.busies:
                    pace.wait_until_calm()
                reported = a_judged(a_night(folder, *options), all_tests)
                new = [raised for raised in reported.alarms if raised.verdict.alarm and raised.verdict.alarm.new]
                one.raised += [(raised.verdict.key.test, raised.sentence) for raised in new]
                say(f"demo, {time.monotonic() - began:.0f} s: {fault.title}, night {one.nights}: {reported.headline}")
        found.append(one)
    say(f"The nights have waited {pace.waited_s:.0f} s for a calm machine.")
    report(night)
    return blamed, found


def a_night(folder: Path, *options: str) -> NightRun:
    checks = ("--checkpath", str(Path(__file__).with_name("demo_tests.py")))
    ends = time.monotonic() + TIME_LIMIT_S
    return NightRun(night_name(), SYSTEM, folder, ends, options, checks, folder / "reframe.out")


def quietly(night: NightRun, chosen: list[NightlyTest]) -> None:
    """Run one job of each test. Raises RunError."""
    if not night.run(chosen):
        raise RunError(f"A night of the demo took longer than {TIME_LIMIT_S:g} s.")


def a_judged(night: NightRun, chosen: list[NightlyTest]) -> NightReport:
    """Run one job of each test, run again what looks worse, and judge. Raises RunError."""
    quietly(night, chosen)
    confirm(night, chosen)
    reported = judged(night)
    keep(night, reported)
    return reported


@contextmanager
def broken(name: str) -> Iterator[tuple[str, ...]]:
    """Break the machine so, and mend it again; gives the options that ReFrame needs for the fault."""
    if name == "link":
        cluster("link", "900mbit")
        try:
            yield ()
        finally:
            cluster("link", "1gbit")
    elif name == "threads":
        yield ("--setvar", f"{NODE}.env_vars=OMP_NUM_THREADS:1,OMP_WAIT_POLICY:passive")
    else:
        there = ("nsenter", "--target", str(first_process(SLOWED)), "--net", "--uts")
        load = subprocess.Popen([*there, sys.executable, "-c", OTHER_WORK, str(max(processors()))])
        try:
            yield ()
        finally:
            load.kill()
            load.wait()


def pin(name: str, processor: int) -> None:
    """Give a node one processor alone, so that work there is not in the way of the other node."""
    space = Path(f"/proc/{first_process(name)}/ns/pid").readlink()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            if (process / "ns/pid").readlink() == space:
                for thread in (process / "task").iterdir():
                    os.sched_setaffinity(int(thread.name), {processor})


def processors() -> set[int]:
    return os.sched_getaffinity(0)


def first_process(name: str) -> int:
    there = record.load()
    assert there is not None
    return there.processes[name].pid


def cluster(*words: str) -> None:
    """Run ci/cluster. Raises RunError."""
    try:
        done = subprocess.run([str(ROOT / "ci" / "cluster"), *words], timeout=COMMAND_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise RunError(f"`ci/cluster {' '.join(words)}` took longer than {COMMAND_TIMEOUT_S} s.") from None
    if done.returncode:
        raise RunError(f"`ci/cluster {' '.join(words)}` failed: its own words are above.")
