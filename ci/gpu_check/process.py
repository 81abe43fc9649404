"""Each part of the check has a process of its own, with a limit on its time.

An illegal access to memory ruins a CUDA process for good, and a collective that nobody answers never ends: neither may
take the rest of the check with it.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO

MOST_LETTERS = 300
"""A process's last words are cut to so many letters."""
RAISED = re.compile(r"(?:[a-z_]\w*\.)*(?=[A-Z])\w*(?:Error|Exception|Failed|Unsupported|Interrupt)\b")
"""The line of a traceback that says what was raised begins so; torch adds hints after it."""
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Each of these signals ends the check. SIGHUP comes with a terminal that is lost."""
PAUSE_S = 0.05
"""Between two looks at a process so much time passes."""
KILLED_S = 10.0
"""A process that was killed is left alone after it, as a driver that hangs may keep it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended. code: None if its time was over. last: its last line, or the one that names an exception."""

    code: int | None
    seconds: float
    last: str

    @property
    def fault(self) -> str | None:
        """Say why it did not do its work, as a sentence; None for one that did."""
        if self.code == 0:
            return None
        if self.code is None:
            return (
                f"It stood still or was too slow: it did not end within {self.seconds:.0f} s and was ended; its last "
                f"words: {self.last}"
            )
        how = signal.Signals(-self.code).name if self.code < 0 else f"exit code {self.code}"
        return f"It ended with {how}; its last words: {self.last}"


def run(module: Sequence[str], *, log: Path, timeout_s: float, environment: Mapping[str, str]) -> Ended:
    """Run `python -m` these words, all output in the log, and end it when its time is over.

    However it ends, what it has started and left behind is killed: it would keep the GPU from the next one.
    """
    with log.open("wb") as output:
        words = [sys.executable, "-m", *module]
        code, seconds = carry_out(words, output, timeout_s=timeout_s, environment=environment)
    return Ended(code, seconds, last_words(log.read_text(errors="replace"), raised=code not in (None, 0)))


def carry_out(
    words: Sequence[str | Path],
    output: IO[bytes],
    *,
    timeout_s: float,
    environment: Mapping[str, str],
    folder: Path | None = None,
) -> tuple[int | None, float]:
    """Run a command, and end it when its time is over; returns its exit code, or None, and the seconds that it took.

    However it ends, and also where this process is ended, all that it has started is killed.
    """
    start = time.monotonic()
    with ExitStack() as deaf:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
        heard = partial(signal.pthread_sigmask, signal.SIG_SETMASK, before)
        deaf.callback(heard)  # to no signal, until there is something to kill
        process = subprocess.Popen(
            words,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | dict(environment),
            start_new_session=True,
            preexec_fn=heard,
        )
        in_time = False
        try:
            deaf.close()
            in_time = _ends(process.pid, start + timeout_s)
        finally:  # also where the check itself has to end
            _kill(process)
    return process.returncode if in_time else None, time.monotonic() - start


def _ends(pid: int, until: float) -> bool:
    """Say whether a process ends by then. It isn't reaped, so that the number of its group stays its own, for _kill."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= until:
            return False
        time.sleep(PAUSE_S)
    return True


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and its group, which may have ended before."""
    os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(KILLED_S)


def end_by_signals(code: int | None = None) -> None:
    """Let each ENDING signal end the check and the process that is running, unless it is ignored, as under nohup.

    code: to end with; by default as a shell tells the signal.
    """

    def end(number: int, frame: FrameType | None) -> None:
        """Raise an exception, so that the process that is running is ended first; no other signal may come between."""
        for other in ENDING:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number if code is None else code)

    for number in ENDING:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


def last_words(said: str, *, raised: bool) -> str:
    """Return the last line; of a process that may have raised an exception, the one that names it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if raised and RAISED.match(line)]
    return (named or lines or ["it said nothing"])[-1][:MOST_LETTERS]
