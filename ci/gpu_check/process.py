"""Process of its own for each part of the check, with a limit on its time.

An illegal access to memory ruins a CUDA process for good, and a collective that nobody answers never ends: neither may
take the rest of the check with it.
"""

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.processes import carry_out

MOST_LETTERS = 300
"""Longest last words of a process that are kept."""
RAISED = re.compile(r"(?:[a-z_]\w*\.)*(?=[A-Z])\w*(?:Error|Exception|Failed|Unsupported|Interrupt)\b")
"""Beginning of a traceback's line that says what was raised; torch adds hints after it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """End of a process."""

    code: int | None
    """None if its time was over."""
    seconds: float
    last: str
    """Its last line, or the one that names an exception."""

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


def last_words(said: str, *, raised: bool) -> str:
    """Return the last line; of a process that may have raised an exception, the one that names it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if raised and RAISED.match(line)]
    return (named or lines or ["it said nothing"])[-1][:MOST_LETTERS]
