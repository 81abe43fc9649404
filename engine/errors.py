"""Errors for a person: one sentence that names what was given, what is allowed and what to do."""

import difflib
import sys
from collections.abc import Collection, Iterable
from importlib.util import find_spec

OUT_OF_MEMORY = "out of memory"


class EngineError(Exception):
    """Base of every error whose message is meant for the user."""


class UsageError(EngineError):
    """Refusal of a command, a file or a grid that can't work; exit code 2, nothing was run."""


class RunError(EngineError):
    """Failure of the run itself (a lost rank, a loss that is not a number); exit code 1, the result says why."""


class WriteError(RunError, OSError):
    """File that can't be written, with an OSError's number and words, and the file's name."""

    def __str__(self) -> str:
        return f"{self.filename} can't be written: {self.strerror}."


class ContactError(RunError):
    """Failure that is not the rank's own: others are out of its reach, or it is asked to end.

    clause: who saw what, without a full stop, beginning with a small letter. detail: what the software below us says.
    """

    def __init__(self, clause: str, detail: str = "") -> None:
        self._clause, self.detail = clause, detail
        super().__init__(sentence(clause, detail))

    def story(self, lost: Collection[int] = ()) -> str:
        """Return the clause, where it can, in terms of the ranks that are known to be lost."""
        return self._clause


def sentence(clause: str, detail: str = "") -> str:
    """Make a clause a sentence, with the words of the software below us in brackets at its end.

    >>> sentence("rank 0 lost contact with rank 1 on axis x", "gloo: Connection closed by peer")
    'Rank 0 lost contact with rank 1 on axis x (gloo: Connection closed by peer).'
    """
    return f"{clause[:1].upper()}{clause[1:]}{f' ({detail})' if detail else ''}."


def first_line(error: BaseException) -> str:
    """Return the first line that an error says, or the name of its class if it says nothing."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether a rank's own memory, host or device, has run out. torch is asked only if it is loaded already.

    NCCL, which takes memory of its own, says so only in the text of a RuntimeError.
    """
    if isinstance(error, (MemoryError, getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError))):
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY in str(error).lower()


def of_a_file(error: BaseException) -> bool:
    """Say whether an error is the system's, of a file that it names: a disk is full, or a folder read-only."""
    return isinstance(error, OSError) and error.filename is not None


def check_installed(module: str, package: str, clause: str) -> None:
    """Raise UsageError unless a module is there. package: what has it, by its name in pip. clause: what needs it."""
    if find_spec(module) is None:
        raise UsageError(f"{clause}, which isn't installed: pip install {package}.")


def nearest(name: str, known: Iterable[str]) -> str:
    """End an "unknown name" sentence: with the closest known names, or all of them if none is close.

    >>> nearest("gpt-80", ["gpt-80b", "gpt-5b"])
    'did you mean gpt-80b?'
    """
    names = list(known)
    close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(names)}."


def listed_divisors(number: int) -> str:
    """List the numbers that divide this one, for a sentence; of many, the first.

    >>> listed_divisors(12)
    '1, 2, 3, 4, 6, 12'
    """
    found = [str(d) for d in range(1, min(number, 4096) + 1) if number % d == 0]
    return ", ".join(found if len(found) <= 12 else [*found[:11], "..."])
