"""ReFrame has a session for each round of a night's jobs, all under the night's name, none beyond its end."""

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
    """Test as `reframe --describe` has it. worth: see suites/base/engine_test.py.

    node_hours: what a job of it takes, by earlier runs or at most, with the jobs that it needs first, at most.
    """

    name: str
    hashcode: str
    node_hours: float
    by: str
    worth: int


@dataclass(slots=True)
class NightRun:
    """One night.

    folder: where ReFrame runs, and keeps its database. ends: the night's end by time.monotonic(). reframe: more options
    for ReFrame. select: its options that select tests. settings: those that set variables of these.
    """

    name: str
    system: str
    folder: Path
    ends: float
    reframe: tuple[str, ...] = ()
    select: tuple[str, ...] = ("--checkpath", str(ROOT / "suites"), "--recursive", "--tag", NIGHTLY)
    settings: tuple[str, ...] = OF_A_NIGHT

    @property
    def database(self) -> Path:
        return self.folder / DATABASE

    @property
    def summaries(self) -> Path:
        """Give the folder with the summaries of the system's nights."""
        return self.folder / "results" / "nights" / self.system

    @property
    def left_s(self) -> float:
        return self.ends - time.monotonic()

    def _words(self, *words: str) -> list[str]:
        return ["--nocolor", "--system", self.system, *self.select, *self.settings, *self.reframe, *words]

    def describe(self) -> list[dict[str, Any]]:
        """ReFrame's descriptions of all tests that the night may run. Raises RunError."""
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
