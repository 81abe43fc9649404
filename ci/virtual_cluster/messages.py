"""What the user is told: a line on standard error, and what goes wrong."""

import sys


class Problem(Exception):
    """What the user is told, in one sentence."""

    code = 1


class Misuse(Problem):
    """The command line asks for what can't be had."""

    code = 2


def say(text: str) -> None:
    """Write one line on standard error."""
    sys.stderr.write(f"cluster: {text}\n")
