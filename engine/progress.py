"""A person who waits sees progress: one line that renews itself on a terminal, plain lines in a log."""

import logging
import sys

RENEWED = {"renewed": True}
"""Pass as `extra` with a record that the next one of its kind replaces on a terminal."""


class _Terminal(logging.StreamHandler):
    """It writes renewed records over each other; any other record starts on a line of its own."""

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
    handler = _Terminal(sys.stderr) if sys.stderr.isatty() else logging.StreamHandler(sys.stderr)
    level = logging.INFO if rank == 0 else logging.ERROR
    logging.basicConfig(level=level, format="%(message)s", handlers=[handler])
