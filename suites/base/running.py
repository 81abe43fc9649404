"""ReFrame as a process of its own, and the tests of a night, by their worth.

A night asks whether last night's update slowed this machine down, and what of it. On every system its tests take at
most 4 nodes, 2 node-hours, and 30 minutes one after the other.
"""

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from engine.processes import Process, supervise

LAUNCHER = (sys.executable, "-P", "-m", "suites.launcher")
PATIENCE_S = 300.0
"""Longest time for ReFrame to cancel its jobs."""

NIGHTLY = "nightly"
"""Tag of a night's tests."""
NO_TURNS = "took no turns"
"""Words of a failed contest whose sides were measured one after the other."""


class Worth:
    """Worth of a kind of test to a night, which leaves out the least first. ReFrame copies no enum."""

    NOTHING = 0
    LAUNCHES = 1
    MEMORY = 2
    PEERS = 3
    OVERLAPS = 4
    PRODUCTS = 5
    LINKS = 6
    CORRECTNESS = 7
    TRAINING = 8


def run_reframe(
    words: Sequence[str], folder: Path, timeout_s: float, out: IO[str], *, own_group: bool = False
) -> int | None:
    """Run ReFrame; returns its exit code, or None if it took longer. Its jobs end with it. out: gets its words.

    own_group: whether a terminal's signals reach it through this process alone, which has to hear them
    (processes.end_by_signals), so that it is asked once to end.
    """

    def wait(running: Process) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return running.wait(timeout_s)
        return None

    return supervise([*LAUNCHER, *words], wait, _end, cwd=folder, stdout=out, stderr=out, start_new_session=own_group)


def _end(running: Process) -> None:
    for ask in (signal.SIGTERM, signal.SIGKILL):
        if running.poll() is None:
            running.send_signal(ask)
            with suppress(subprocess.TimeoutExpired):
                running.wait(PATIENCE_S)
