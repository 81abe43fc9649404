"""Real results for a reader without a machine: measured, made small, committed, and built into a site.

    ci/example --list                    # what is measured, how long it takes, and when it was last
    ci/example                           # measures all that isn't done on this commit, packs it, builds the site
    ci/example --only overlap --again    # one entry anew
    ci/example --build                   # measures nothing: the site of what is committed, as ci/demo --example does

The list is ci/measured_example/entries.yaml: suites, sized down, on this machine (local) and on the virtual cluster,
which takes root, and is made and ended here unless it is up. Its nights ran one after the other over slow links, with
faults planted on purpose (tests/suites/planted_nights.py). An entry that ended well replaces its folder in
reports/example; one that failed leaves the earlier one as it is, and runs again with the next call. Results lose what
names a machine, its user or its folders (ci/measured_example/scrub.py). It takes two cores at rest, as its times are
committed: run nothing besides, and begin with a commit, as results say whether the tree was modified. Some entries
take ci/peers deepspeed megatron-core. Pages that need a GPU stay empty, and say so.

exit code: 0 all is packed and built, 1 an entry failed, 2 couldn't measure or build all of it.
"""

import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tabulate import tabulate

from command_line import Parser
from engine import processes
from engine.errors import UsageError
from measured_example import measure
from measured_example.entries import CLUSTER, ENTRIES, LOCAL, ROOT, Entry, read
from measured_example.pack import pack

PACKED = ROOT / measure.PACKED
SITE = ROOT / "site" / "example"
MOST_BYTES = 3_000_000
FINE, FAILED, UNKNOWN = 0, 1, 2
SHOWN_LINES = 20


def main(words: Sequence[str]) -> int:
    given = parser().parse_args(words)
    entries = choose(given.only or (), given.system)
    if given.list:
        show(entries)
        return FINE
    code = FINE
    if not given.build:
        processes.end_by_signals(UNKNOWN)
        code = run(entries, given.again, time.monotonic() + 60 * given.minutes)
        remove_unlisted()
    size = sum(path.stat().st_size for path in PACKED.glob("*/*"))
    if size > MOST_BYTES:
        say(f"{PACKED} has {size:,} bytes, of which {MOST_BYTES:,} are allowed: take less in {ENTRIES.name}.")
        code = code or UNKNOWN
    return code or (UNKNOWN if measure.build(PACKED, given.out) else FINE)


def parser() -> Parser:
    found = Parser("ci/example", __doc__)
    found.add_argument("--list", action="store_true", help="show the entries with their minutes, and run nothing")
    found.add_argument("--build", action="store_true", help="build the site from the committed results alone")
    found.add_argument("--only", metavar="NAME", action="append", help="this entry; may be repeated")
    found.add_argument("--system", choices=(LOCAL, CLUSTER), help="entries of this one alone")
    found.add_argument("--again", action="store_true", help="also what is done on this commit")
    found.add_argument("--minutes", metavar="N", type=float, default=75, help="to take at most (default: 75)")
    found.add_argument("--out", metavar="DIR", type=Path, default=SITE, help="of the site (default: site/example)")
    return found


def choose(names: Sequence[str], system: str | None) -> list[Entry]:
    """Return the entries that are asked for. Raises UsageError for a name that none has."""
    every = read()
    known = [entry.name for entry in every]
    if wrong := [name for name in names if name not in known]:
        raise UsageError(f"--only: {wrong[0]!r} is no entry: there are {', '.join(known)}.")
    chosen = [entry for entry in every if not names or entry.name in names]
    return [entry for entry in chosen if system in (None, entry.system)]


def run(entries: Sequence[Entry], again: bool, until: float) -> int:
    """Measure and pack entries, one after the other; returns the exit code."""
    measure.WORK.mkdir(parents=True, exist_ok=True)
    here, code, troubles = measure.commit(), FINE, list[str]()
    with ExitStack() as at_the_end:
        at_the_end.callback(pack_all, entries, here)  # not before, as packed files would make the tree a modified one
        cluster = at_the_end.enter_context(measure.Cluster())
        for number, entry in enumerate(entries, 1):
            last = measure.done(entry)
            if last and last.commit == here and not again:
                say(f"{number} of {len(entries)}, {entry.name}: done on this commit")
                continue
            obstacle = "no time is left: run ci/example again" if time.monotonic() > until else measure.obstacle(entry)
            if not obstacle and entry.system == CLUSTER:
                obstacle = cluster.make()
            if obstacle:
                code = code or UNKNOWN
                troubles.append(f"{entry.name}: {obstacle}")
                continue
            say(f"{number} of {len(entries)}, {entry.name}, about {entry.minutes:g} minutes")
            if why := measure.measure(entry, until):
                code = FAILED
                troubles.append(f"{entry.name}: {why}, see {measure.log_of(entry)}")
                say("\n".join([troubles[-1], *measure.last_lines(entry, SHOWN_LINES)]))
    for trouble in troubles:
        say(trouble)
    return code


def pack_all(entries: Sequence[Entry], commit: str) -> None:
    """Pack each entry that ended well on this commit."""
    for entry in entries:
        last = measure.done(entry)
        if last and last.commit == commit:
            pack(measure.folder_of(entry), PACKED / entry.name)


def remove_unlisted() -> None:
    """Remove packed results of what the list has no more."""
    listed = {entry.name for entry in read()}
    for folder in PACKED.glob("*/"):
        if folder.name not in listed:
            shutil.rmtree(folder)


def show(entries: Sequence[Entry]) -> None:
    """Print the entries, and the minutes of all."""
    rows = [(*_row(entry), entry.minutes) for entry in entries]
    rows.append(("all", "", "", "", sum(entry.minutes for entry in entries)))
    sys.stdout.write(tabulate(rows, ["Entry", "System", "Runs", "Last", "Minutes"], "plain", floatfmt=".1f") + "\n")


def _row(entry: Entry) -> tuple[str, str, str, str]:
    last = measure.done(entry)
    when = f"{last.seconds / 60:.1f} minutes on {last.commit[:8]}" if last else "never here"
    what = f"suites/{entry.suite}.py" if entry.suite else entry.script or f"par4d {entry.commands[0][0]}"
    return entry.name, entry.system, f"{what} {entry.only}".strip() + f" x{entry.repeat}" * (entry.repeat > 1), when


def say(words: str) -> None:
    sys.stderr.write(f"example, {time.monotonic() - STARTED:.0f} s: {words}\n")
    sys.stderr.flush()


STARTED = time.monotonic()
