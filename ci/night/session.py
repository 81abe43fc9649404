"""ReFrame's sessions of a night: one for each round of jobs, all under the night's name, none beyond its end."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.errors import RunError
from reports.nights.history import DATABASE, NIGHT

ROOT = Path(__file__).parents[2]
TAG = "nightly"
DESCRIBE_TIMEOUT_S = 600
PATIENCE_S = 60.0
"""For ReFrame to cancel its jobs."""


@dataclass(slots=True)
class NightRun:
    """One night. folder: where ReFrame runs, and keeps its database; ends: by time.monotonic(); reframe: its options
    besides; select: which tests; log: where its own words go, standard error unless given.
    """

    name: str
    system: str
    folder: Path
    ends: float
    reframe: tuple[str, ...] = ()
    select: tuple[str, ...] = ("--checkpath", str(ROOT / "suites"), "--recursive", "--tag", TAG)
    log: Path | None = None

    @property
    def database(self) -> Path:
        """ReFrame's."""
        return self.folder / DATABASE

    @property
    def left_s(self) -> float:
        """Until it ends."""
        return self.ends - time.monotonic()

    def _command(self, *words: str) -> list[str]:
        launcher = [sys.executable, "-P", "-m", "suites.launcher", "--nocolor", "--system", self.system]
        return [*launcher, *self.select, *self.reframe, *words]

    def describe(self) -> list[dict[str, Any]]:
        """Every test that the night may run. Raises RunError."""
        try:
            done = subprocess.run(
                self._command("--describe"), cwd=self.folder, capture_output=True, text=True,
                timeout=DESCRIBE_TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RunError(f"ReFrame took longer than {DESCRIBE_TIMEOUT_S} s to describe the tests.") from None
        found: list[dict[str, Any]] = []
        with suppress(ValueError):
            found = json.loads(done.stdout[done.stdout.index("[") :])
        if done.returncode or not found:
            words = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
            raise RunError(f"ReFrame can't describe the nightly tests of {self.system}: {words[-1] if words else '?'}")
        return [test for test in found if "worth" in test]

    def run(self, hashcodes: Iterable[str]) -> bool:
        """One job of each of these tests. Whether there was time for it."""
        names = [word for hashcode in hashcodes for word in ("--name", f"/{hashcode}")]
        words = self._command("--run", *names, "--session-extras", f"{NIGHT}={self.name}")
        if self.left_s <= 0:
            return False
        with self.log.open("a") if self.log else nullcontext(sys.stderr) as log:
            running = subprocess.Popen(words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                running.wait(self.left_s)
            except subprocess.TimeoutExpired:
                return False
            finally:
                _end(running)
        return True


def night_name() -> str:
    """Of a night that begins now."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H%M%S}"


def _end(running: subprocess.Popen[bytes]) -> None:
    """So that ReFrame cancels its jobs."""
    for ask in (signal.SIGTERM, signal.SIGKILL):
        if running.poll() is None:
            running.send_signal(ask)
            with suppress(subprocess.TimeoutExpired):
                running.wait(PATIENCE_S)
