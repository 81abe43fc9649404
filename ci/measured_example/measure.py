"""Runs an entry of the list in a folder of its own, and remembers on which commit it ended well."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from engine import processes
from engine.errors import UsageError
from engine.files import write_text
from engine.output import complain
from engine.result.provenance import git_state
from measured_example.entries import CLUSTER, ROOT, Entry

WORK = ROOT / "build" / "example"
"""Folder that git ignores, with one for each entry."""
FACTOR, SPARE_MINUTES = 4.0, 3.0
"""Times its minutes, and minutes besides, after which an entry is ended."""
PACKED = "reports/example"
"""Folder of what is committed, below the project's."""
GIT_S = 60
BUILD_S = 600.0
REFERENCES = "PAR4D_REFERENCES"
"""Variable that names the folder of references, by which the example's nights are judged."""
CLUSTER_S = 600
"""Time-out of what makes the cluster, installs its packages or ends it."""
DONE, LOG = "done", "log"
CLUSTER_LOG = f"cluster.{LOG}"
"""Name of the file beside the entries' logs."""


@dataclass(frozen=True, slots=True)
class Done:
    """Note of an entry that ended well."""

    commit: str
    digest: str
    seconds: float


def commit(root: Path = ROOT) -> str:
    """Name the commit of a working tree, and whether anything but packed results was changed since."""
    known, _ = git_state(root)
    words = ["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no", "--", ".", f":!{PACKED}"]
    found = subprocess.run(words, capture_output=True, text=True, timeout=GIT_S)
    if not known or found.returncode:
        raise UsageError(f"{root} is no working tree of git, so no result can name its commit: clone the project.")
    return f"{known}{', modified' if found.stdout.strip() else ''}"


def done(entry: Entry) -> Done | None:
    """Return how an entry ended last; None unless it ended well, as the list has it now."""
    with suppress(OSError, ValueError, TypeError):
        found = Done(**json.loads((WORK / f"{entry.name}.{DONE}").read_text()))
        return found if found.digest == entry.digest else None
    return None


def folder_of(entry: Entry) -> Path:
    return WORK / entry.name


def log_of(entry: Entry) -> Path:
    return WORK / f"{entry.name}.{LOG}"


def measure(entry: Entry, until: float) -> str:
    """Run an entry from nothing; returns why it failed, "" if it didn't. until: as time.monotonic() has it."""
    folder, began = folder_of(entry), time.monotonic()
    note = WORK / f"{entry.name}.{DONE}"
    note.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    limit = min(began + 60 * (FACTOR * entry.minutes + SPARE_MINUTES), until)
    with log_of(entry).open("wb") as out:
        for words in entry.lines:
            left_s = max(limit - time.monotonic(), 0.0)
            code, _ = processes.carry_out(words, out, timeout_s=left_s, environment={}, folder=folder)
            if code != 0:
                return "it took too long and was ended" if code is None else f"it ended with {code}"
    write_text(note, json.dumps(asdict(Done(commit(), entry.digest, time.monotonic() - began))))
    return ""


def obstacle(entry: Entry) -> str:
    """Say why an entry can't run here, and what to do; "" if it can."""
    if entry.peer and not (ROOT / ".venv-peers" / entry.peer / "par4d-installed").exists():
        return f"{entry.peer} isn't installed: run ci/peers {entry.peer} first"
    if entry.system == CLUSTER and os.geteuid() != 0:
        return "the virtual cluster takes root: run ci/example as root, or give --system local"
    return ""


class Cluster:
    """Virtual cluster, which is made when the first entry asks for it, and ended unless it was up before."""

    def __init__(self) -> None:
        self._made = False
        self._obstacle: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._made:
            carry_out_cluster("down")

    def make(self) -> str:
        """Make it, unless it is up; returns why that failed, "" if it didn't. It is tried once."""
        if self._obstacle is None:
            self._made = not carry_out_cluster("status")
            up = not self._made or carry_out_cluster("up")
            self._obstacle = "" if up else f"no cluster could be made: see {WORK / CLUSTER_LOG}"
        return self._obstacle


def carry_out_cluster(word: str) -> bool:
    """Run ci/cluster with this word; returns whether it succeeded."""
    with (WORK / CLUSTER_LOG).open("ab") as out:
        words = [str(ROOT / "ci" / "cluster"), word]
        code, _ = processes.carry_out(words, out, timeout_s=CLUSTER_S, environment={}, folder=ROOT)
    return code == 0


def last_lines(entry: Entry, count: int) -> Sequence[str]:
    with suppress(OSError):
        return log_of(entry).read_text(errors="replace").splitlines()[-count:]
    return []


def build(results: Path, out: Path) -> int:
    """Build the site from packed results, which it names by their place in the project; returns the exit code."""
    words = [str(ROOT / ".venv/bin/python"), "-m", "reports", "build"]
    where = results.relative_to(ROOT) if results.is_relative_to(ROOT) else results
    words += ["--results", str(where), "--out", str(out)]
    environment = os.environ | {REFERENCES: str(results / "nights")}
    try:
        return subprocess.run(words, cwd=ROOT, env=environment, timeout=BUILD_S).returncode
    except subprocess.TimeoutExpired:
        complain(f"The site took more than {BUILD_S:.0f} s to build: run ci/example again on a machine at rest.")
        return 1
