"""Standard streams of a command: its output, which may be full or closed, and progress for a person who waits."""

import io
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TextIO

from engine.errors import RunError

INTERRUPTED = 130
"""Exit code of a shell for a command that SIGINT has ended."""


def unless_interrupted(command: Callable[[], int]) -> int:
    """Run a command, which imports what it needs itself; return its exit code, or INTERRUPTED in one sentence."""
    try:
        return command()
    except KeyboardInterrupt:
        complain("Interrupted.")
        return INTERRUPTED


def open_streams() -> None:
    """Have standard streams that take every text: a letter that their encoding lacks is written as its number.

    One that the process was started without goes nowhere, instead of into the next file that is opened.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: PTH123, SIM115 - for as long as the process lives
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            with suppress(OSError):  # where another program has put something else behind its number
                stream.reconfigure(errors="backslashreplace")


def say(text: str, *, kept: bool = False) -> None:
    """Write to standard output. kept: a file has it too, so that it is only mentioned where that can't be written.

    Raises RunError where it can't, and nothing has it.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        words = no_output(error)
        if not kept:
            raise RunError(words) from error
        complain(words)


def columns(rows: Iterable[Sequence[str]], *, left: int = 0) -> str:
    """Write rows of words below one another, the first columns (left) set to the left and all others to the right.

    tabulate would do, but ci/gpu's machine needn't have it.
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(word.ljust(wide) if place < left else word.rjust(wide) for place, (word, wide) in enumerate(cells))
        for cells in (list(zip(row, widths, strict=True)) for row in rows)
    )
    return "\n".join(line.rstrip() for line in lines)


def complain(sentence: str) -> None:
    """Write a line to standard error, or nowhere if that can't be written either."""
    try:
        sys.stderr.write(f"{sentence}\n")
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def no_output(error: OSError) -> str:
    """Say why standard output can't be written, and discard what Python would write once more at its end."""
    _discard(sys.stdout)
    return f"Standard output can't be written: {error.strerror}."


def _discard(stream: TextIO) -> None:
    """Lead a stream that can't be written to nowhere: what it still holds would end Python with an exit code of 120."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


RENEWED = {"renewed": True}
"""Pass as `extra` with a record that the next one of its kind replaces on a terminal."""


class _Log(logging.StreamHandler):
    """Handler of lines that a full disk or a closed end doesn't stop."""

    def handleError(self, record: logging.LogRecord) -> None:
        if isinstance(sys.exc_info()[1], OSError):
            _discard(self.stream)
        else:
            super().handleError(record)


class _Terminal(_Log):
    """Handler that writes renewed records over each other; any other record starts on a line of its own."""

    _open = False

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        renewed = getattr(record, "renewed", False)
        start = "\r\x1b[K" if renewed else "\n" if self._open else ""
        self._open, self.terminator = renewed, "" if renewed else "\n"
        return start + text

    def close(self) -> None:
        if self._open:
            self.stream.write("\n")
        super().close()


def log_to_stderr(rank: int) -> None:
    """Log information from rank 0, problems from every rank."""
    handler = _Terminal(sys.stderr) if sys.stderr.isatty() else _Log(sys.stderr)
    level = logging.INFO if rank == 0 else logging.ERROR
    logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
