"""Messages to the user are lines on standard error, and exceptions that say what went wrong."""

import sys


class Problem(Exception):
    """Something went wrong; the message says what in one sentence."""

    code = 1


class Misuse(Problem):
    """The command line asks for what can't be had."""

    code = 2


def say(text: str) -> None:
    sys.stderr.write(f"cluster: {text}\n")
