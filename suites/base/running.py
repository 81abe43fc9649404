"""ReFrame runs as a process of its own."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

LAUNCHER = (sys.executable, "-P", "-m", "suites.launcher")
PATIENCE_S = 300.0
"""ReFrame gets so long to cancel its jobs."""
ENDS = (signal.SIGTERM, signal.SIGINT)


def run_reframe(words: Sequence[str], folder: Path, timeout_s: float, out: IO[str]) -> int | None:
    """Run ReFrame; returns its exit code, or None if it took longer. Its jobs end with it. out: gets its words."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)  # until it is known what is to be ended
    heard = partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)
    running = subprocess.Popen(
        [*LAUNCHER, *words], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, preexec_fn=heard
    )
    try:
        heard()
        return running.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        for ask in (signal.SIGTERM, signal.SIGKILL):
            if running.poll() is None:
                running.send_signal(ask)
                with suppress(subprocess.TimeoutExpired):
                    running.wait(PATIENCE_S)
