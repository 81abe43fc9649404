"""What the engine says to a person: one sentence that names what was given, what is allowed and what to do."""

import difflib
from collections.abc import Iterable


class EngineError(Exception):
    """Base of every error whose message is meant for the user."""


class UsageError(EngineError):
    """The command, a file it names or the grid it asks for can't work; exit code 2, nothing was run."""


class RunError(EngineError):
    """The run itself failed (a lost rank, a loss that is not a number); exit code 1, the result says why."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an "unknown name" sentence: the closest known names, or all of them if none is close.

    >>> nearest("gpt-80", ["gpt-80b", "gpt-5b"])
    'did you mean gpt-80b?'
    """
    names = list(known)
    close = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(names)}."


def divisors(number: int) -> str:
    """The numbers that divide this one, for a sentence; of many, the first.

    >>> divisors(12)
    '1, 2, 3, 4, 6, 12'
    """
    found = [str(d) for d in range(1, min(number, 4096) + 1) if number % d == 0]
    return ", ".join(found if len(found) <= 12 else [*found[:11], "..."])
