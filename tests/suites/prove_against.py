"""Does `ci/nightly --against` find a slowdown of 3 % in one night, and is it silent where nothing is slower? For real.

    python tests/suites/prove_against.py                         20 planted and 20 quiet tries on an idle machine
    python tests/suites/prove_against.py -- --exclude 'unet|local-2'            of one test; ReFrame's words behind --
    python tests/suites/prove_against.py --tries 5 --load 4      beside four busy processes
    python tests/suites/prove_against.py --planted 5             a slowdown of 5 %

Tries are nights of this checkout's last commit, in copies of it, planted and quiet ones in a drawn order. In a planted
copy a further commit has each step of the engine followed by work of so many percent of the step's own time, and is run
against the commit before; a quiet copy is run against its own. Each try waits until the machine is idle, five minutes
at most, and is kept in --keep as it ends, so that the same command goes on where it was stopped.

A night of a test takes five to eight jobs. On two idle cores of an AMD EPYC, of which gpt-local-1 takes one, 18 of 21
planted tries were found and three undecided (ratios of 1.023 to 1.040, 4 minutes in the median), and of 20 quiet ones
eight were no slower, twelve undecided and none slower (0.994 to 1.007, 6 minutes). In the first half of these tries
jobs differed by 0.2 to 1.0 % (standard deviation), in the second by up to 3.4 %, as others used the machine's memory:
then a quiet night stays undecided, as 3 % may. Beside the work of others (2 to 13 runnable processes), three planted
and two quiet tries were undecided: ratios of 1.023, 1.027 and 1.041, and of 0.996 both, in 7 to 15 minutes each.

A planted try is found if a test is slower and none is no slower, a quiet one is right if no test is slower. The exit
code is 0 if all planted tries are found and no quiet one has a test that is slower; under --load, where a planted one
may be undecided, too, if it has no test that is no slower. It is 1 if not, also where a test failed, and 2 if a try
couldn't be run.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from math import exp, log, sqrt
from pathlib import Path
from statistics import geometric_mean, mean, median, variance
from tempfile import TemporaryDirectory

from prove_nights import wait_until_idle
from slower_engine import ROOT, clone, git, plant
from tabulate import tabulate

from engine.files import write_text
from night.against import FIGURE, FOLDER
from reports.nights.report import FINE, UNKNOWN, WORSE
from reports.read.history import DATABASE, history

KEPT = ROOT / "results" / ".prove-against"
SEED = 36
LONGEST_S = 7200
PATIENCE_S = 300.0
VERDICTS = ("slower", "no slower", "undecided", "failed")
TRAINER = "engine/training/trainer.py"
PLANTED = """

import time

_step = Trainer.step


def _slower(self: Trainer) -> object:
    began = time.perf_counter()
    done = _step(self)
    until = time.perf_counter() + {by} * (time.perf_counter() - began)
    while time.perf_counter() < until:
        pass
    return done


Trainer.step = _slower
"""


@dataclass(frozen=True, slots=True)
class Settings:
    """Conditions of tries that are told together."""

    commit: str
    percent: float
    """planted"""
    load: int
    """busy processes beside a night"""
    words: tuple[str, ...]
    """of ReFrame"""


@dataclass(frozen=True, slots=True)
class Try:
    """Night of a copy, and what became of it."""

    number: int
    planted: bool
    code: int
    minutes: float
    loads: tuple[float, float]
    """runnable processes as it began and ended, averaged over a minute"""
    verdicts: Mapping[str, str] = field(default_factory=dict)
    """by test"""
    ratios: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """of its jobs, by test"""
    error: str = ""
    """last words of one that left no verdicts"""

    @property
    def outcome(self) -> str:
        """found, missed, right, WRONG or undecided; failed where a test did, and broken without verdicts."""
        words = set(self.verdicts.values())
        code = next((code for word, code in (("slower", WORSE), ("undecided", UNKNOWN)) if word in words), FINE)
        if "failed" in words:
            return "failed"
        if not words or self.code != code:
            return "broken"
        if self.planted:
            return "WRONG" if "no slower" in words else "found" if "slower" in words else "undecided"
        return "WRONG" if "slower" in words else "undecided" if words == {"undecided"} else "right"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tries", type=int, default=20, help="of each kind")
    options.add_argument("--planted", type=float, default=3.0, metavar="PERCENT", help="that a step gets slower by")
    options.add_argument("--load", type=int, default=0, metavar="N", help="busy processes beside each night")
    options.add_argument("--keep", type=Path, default=KEPT, metavar="DIR", help="where tries are kept")
    options.add_argument("words", nargs="*", help="for ReFrame")
    given = options.parse_args()
    if given.tries < 1 or given.load < 0 or not given.planted > 0:
        options.error("--tries is 1 or more, --load 0 or more, and --planted above 0.")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(UNKNOWN))  # so that what was started ends, as by an interrupt
    settings = Settings(git(ROOT, "rev-parse", "HEAD"), given.planted, given.load, tuple(given.words))
    done = kept(given.keep, settings)
    with TemporaryDirectory() as folder:
        copies: dict[bool, Path] = {}
        for number, planted in order(given.tries):
            if number in done:
                continue
            if planted not in copies:
                copies[planted] = clone(Path(folder, "planted" if planted else "quiet"))
                if planted:
                    plant(copies[planted], TRAINER, PLANTED.format(by=given.planted / 100))
            done[number] = one = run(copies[planted], number, planted, settings)
            keep(given.keep, settings, done)
            left = 2 * given.tries - sum(wanted in done for wanted, _ in order(given.tries))
            sys.stdout.write(f"{'planted' if planted else 'quiet'} try: {one.outcome}, {one.minutes:.1f} minutes, ")
            sys.stdout.write(f"{left} tries are left{f'; {one.error}' if one.error else ''}\n")
            sys.stdout.flush()
    found = [done[number] for number, _ in order(given.tries)]
    sys.stdout.write(as_text(settings, found))
    return exit_code(found, under_load=given.load > 0)


def order(tries: int) -> list[tuple[int, bool]]:
    """Return the numbers of so many tries of each kind in their order, and whether each is planted. More tries begin
    with those of fewer.
    """
    drawing, found = random.Random(SEED), list[tuple[int, bool]]()
    for pair in range(tries):
        kinds = [True, False]
        drawing.shuffle(kinds)
        found += [(2 * pair + place, planted) for place, planted in enumerate(kinds)]
    return found


def run(folder: Path, number: int, planted: bool, settings: Settings) -> Try:
    """Run a try in its copy."""
    if not settings.load:
        wait_until_idle(PATIENCE_S)
    with busy(settings.load):
        began, before = time.monotonic(), os.getloadavg()[0]
        done = night(folder, ["--", *settings.words] if settings.words else [], "HEAD~1" if planted else "HEAD")
        minutes = (time.monotonic() - began) / 60
    verdicts = verdicts_of(done.stdout)
    ratios = ratios_of(folder) if verdicts else {}
    error = "" if verdicts else " ".join(done.stderr.split())[-600:]
    loads = (before, os.getloadavg()[0])
    return Try(number, planted, done.returncode, minutes, loads, verdicts, ratios, error)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep so many processes busy."""
    load = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in load:
            process.kill()
            process.wait()


def verdicts_of(table: str) -> dict[str, str]:
    """Read the verdict of each test from what a night has written."""
    rows = [re.split(r"\s{2,}", line) for line in table.splitlines()]
    return {row[1]: row[0] for row in rows if row[0] in VERDICTS and len(row) > 1}


def ratios_of(folder: Path) -> dict[str, list[float]]:
    """Return the ratios of the last night's jobs, by test."""
    found = defaultdict[str, list[float]](list)
    nights = history(folder / FOLDER / DATABASE, "local").nights
    for job in nights[-1].jobs if nights else ():
        if FIGURE in job.figures:
            found[job.key.point.removeprefix("point=")].append(job.figures[FIGURE][0])
    return dict(found)


def as_text(settings: Settings, tries: Sequence[Try]) -> str:
    """Write a line for each try, and for each kind and test what its ratios were."""
    heads = ["kind", "outcome", "verdicts", "jobs", "minutes", "load before", "after"]
    rows = [
        [
            "planted" if one.planted else "quiet",
            one.outcome,
            ", ".join(f"{count} {word}" for word, count in sorted(Counter(one.verdicts.values()).items())),
            sum(map(len, one.ratios.values())),
            f"{one.minutes:.1f}",
            *(f"{load:.1f}" for load in one.loads),
        ]
        for one in tries
    ]
    lines = [tabulate(rows, heads, "plain", disable_numparse=True), "", tabulate(*_by_test(tries), "plain"), ""]
    for planted, kind in ((True, f"planted, {settings.percent:g} %"), (False, "quiet")):
        each = [one for one in tries if one.planted == planted]
        outcomes = ", ".join(f"{count} {word}" for word, count in Counter(one.outcome for one in each).items())
        lines.append(f"{kind}: {outcomes} of {len(each)}; {median(one.minutes for one in each):.1f} minutes a try")
    return "\n".join(["", f"commit {settings.commit[:12]}, {settings.load} busy processes beside", *lines, ""])


def _by_test(tries: Sequence[Try]) -> tuple[list[list[str]], list[str]]:
    rows = []
    for planted in (True, False):
        names = dict.fromkeys(name for one in tries if one.planted == planted for name in one.ratios)
        for name in names:
            each = [one for one in tries if one.planted == planted and one.ratios.get(name)]
            ratios = [geometric_mean(one.ratios[name]) for one in each]
            spreads = [variance(map(log, of)) for one in each if len(of := one.ratios[name]) > 1]
            words = Counter(one.verdicts.get(name, "none") for one in each)
            spread = f"{100 * (exp(sqrt(mean(spreads))) - 1):.2f} %" if spreads else ""
            row = ["planted" if planted else "quiet", name, *(str(words[word]) for word in VERDICTS)]
            row += [f"{median(ratios):.4f}", f"{min(ratios):.4f} to {max(ratios):.4f}", spread]
            rows.append([*row, f"{mean(len(one.ratios[name]) for one in each):.1f}"])
    heads = ["kind", "test", *VERDICTS, "median ratio", "ratios", "sd of jobs", "jobs a try"]
    return rows, heads


def exit_code(tries: Sequence[Try], *, under_load: bool) -> int:
    """Judge all tries by the rule above."""
    outcomes = Counter(one.outcome for one in tries)
    if outcomes["broken"]:
        return UNKNOWN
    missed = 0 if under_load else sum(one.planted and one.outcome != "found" for one in tries)
    return WORSE if outcomes["WRONG"] or outcomes["failed"] or missed else FINE


def kept(folder: Path, settings: Settings) -> dict[int, Try]:
    """Read the tries of these settings that have ended, but those that couldn't be run, by their numbers."""
    file = _file(folder, settings)
    if not file.exists():
        return {}
    document = json.loads(file.read_text())
    if document["settings"] != json.loads(json.dumps(asdict(settings))):
        raise SystemExit(f"{file} has tries of other settings: take another --keep.")
    tries = [Try(**one) for one in document["tries"]]
    return {one.number: one for one in tries if one.outcome != "broken"}


def keep(folder: Path, settings: Settings, tries: Mapping[int, Try]) -> None:
    """Write tries to the settings' file."""
    document = {"settings": asdict(settings), "tries": [asdict(one) for one in tries.values()]}
    write_text(_file(folder, settings), json.dumps(document, indent=1))


def _file(folder: Path, settings: Settings) -> Path:
    words = re.sub(r"\W+", "-", " ".join(settings.words)).strip("-") or "all"
    return folder / f"{settings.commit[:12]}-{settings.percent:g}-percent-load-{settings.load}-{words}.json"


def night(folder: Path, words: Sequence[str], commit: str = "HEAD") -> "subprocess.CompletedProcess[str]":
    """Run what ci/nightly runs, of that copy against one of its commits, in this environment."""
    own = {"PYTHONPATH": f"{folder}:{folder / 'ci'}", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    variables = {"HOME": os.environ["HOME"], "RFM_CONFIG_FILES": str(folder / "systems" / "settings.py")} | own
    command = [sys.executable, "-P", "-m", "night", "--system", "local", "--against", commit, *words]
    running = subprocess.Popen(
        command,
        env=variables,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    try:
        out, err = running.communicate(timeout=LONGEST_S)
        return subprocess.CompletedProcess(command, running.returncode, out, err)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, UNKNOWN, "", f"It took longer than {LONGEST_S} s.")
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGTERM)
        running.wait()


if __name__ == "__main__":
    sys.exit(main())
