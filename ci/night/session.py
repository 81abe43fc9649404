"""Sessions of ReFrame, one for each round of a night's jobs, under the night's name and within its time."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.errors import RunError
from reports.read.history import CHOSEN, DATABASE, NIGHT, write_tests
from suites.base.running import LAUNCHER, NIGHTLY, run_reframe

ROOT = Path(__file__).parents[2]
OF_A_NIGHT = ("--setvar", "Bandwidth.keep=no", "--setvar", "canary=yes")
"""Settings of a night: no file of the project changes, no slow link gets to a planner, and jobs run the canary."""
DESCRIBE_TIMEOUT_S = 600


@dataclass(frozen=True, slots=True)
class NightlyTest:
    """Test as `reframe --describe` has it."""

    name: str
    hashcode: str
    node_hours: float
    """of a job of it, by earlier runs or else at most, and of the jobs that it needs first, at most"""
    by: str
    """origin of the node-hours"""
    worth: int
    """a Worth of suites/base/running.py"""
    minutes: float = 0.0
    """that these jobs have their nodes, by the same origin"""


@dataclass(slots=True)
class NightRun:
    """Night of a system."""

    name: str
    system: str
    folder: Path
    """where ReFrame runs, and keeps its database"""
    ends: float
    """by time.monotonic()"""
    reframe: tuple[str, ...] = ()
    """more options for ReFrame"""
    select: tuple[str, ...] = ("--checkpath", str(ROOT / "suites"), "--recursive", "--tag", NIGHTLY)
    """options that select tests"""
    settings: tuple[str, ...] = OF_A_NIGHT
    """options that set variables of tests"""
    exclude_slow: bool = False
    """whether nodes that are known to be slow are left out"""

    @property
    def database(self) -> Path:
        return self.folder / DATABASE

    @property
    def summaries(self) -> Path:
        """Folder with the summaries of the system's nights."""
        return self.folder / "results" / "nights" / self.system

    @property
    def left_s(self) -> float:
        return self.ends - time.monotonic()

    def _words(self, *words: str) -> list[str]:
        return ["--nocolor", "--system", self.system, *self.select, *self.settings, *self.reframe, *words]

    def describe(self) -> list[dict[str, Any]]:
        """Return ReFrame's descriptions of all tests that the night may run. Raises RunError."""
        words, limit_s = [*LAUNCHER, *self._words("--describe")], min(DESCRIBE_TIMEOUT_S, self.left_s)
        try:
            done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired:
            raise RunError(f"ReFrame took longer than {limit_s:.0f} s to describe the tests.") from None
        found: list[dict[str, Any]] | None = None
        with suppress(ValueError):
            found = json.loads(done.stdout[done.stdout.index("[") :])
        if done.returncode or found is None:
            said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()] or ["?"]
            raise RunError(f"ReFrame can't describe the nightly tests of {self.system}: {said[-1]}")
        if not (ours := [test for test in found if "worth" in test]):
            raise RunError(f"No nightly test of {self.system} is left: exclude fewer.")
        return ours

    def run(self, tests: Sequence[NightlyTest]) -> bool:
        """Run one job of each of these tests; returns whether there was time for it."""
        if self.left_s <= 0:
            return False
        names = [word for test in tests for word in ("--name", f"/{test.hashcode}")]
        extras = f"{NIGHT}={self.name},{CHOSEN}={write_tests(test.name for test in tests)}"
        words = self._words("--run", *names, "--session-extras", extras)
        return run_reframe(words, self.folder, self.left_s, sys.stderr) is not None


def night_name() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}"
