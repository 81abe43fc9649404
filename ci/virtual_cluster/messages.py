"""Messages to the user are lines on standard error, and exceptions that say what went wrong."""

import sys


class Problem(Exception):
    """Fault, in one sentence."""

    code = 1


class Misuse(Problem):
    """Fault of the command line."""

    code = 2


def say(text: str) -> None:
    sys.stderr.write(f"cluster: {text}\n")
