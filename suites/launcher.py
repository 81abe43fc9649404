"""The `reframe` command is ReFrame's own, which knows our systems and what to do when no action is given.

    reframe -c suites/weak_scaling.py --system frontier

runs there; on any other machine it says so and makes a dry run. All options are ReFrame's own, and an action that is
given (-r, -l, --dry-run ...) is respected. What is mistyped, and a selection of which no test runs, are errors
(base/refusals.py), which ReFrame calls a pass. A list (-l, -L) and a dry run end with what their tests cost
(base/listings.py).

ci/bin/reframe starts it, and ci/env.sh puts that before ReFrame's own script on PATH.
"""

import inspect
import logging
import os
import re
import socket
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import systems
from engine.errors import UsageError, nearest
from engine.output import complain

SETTINGS = Path(systems.__file__).with_name("settings.py")
CONFIGURATION = ("RFM_CONFIG_FILES", "RFM_CONFIG_PATH", "RFM_CONFIG_FILE")
ACTIONS = (
    *("--run", "--dry-run", "--list", "--list-detailed", "--list-tags", "--describe", "--show-config", "--ci-generate"),
    *("--list-stored-sessions", "--list-stored-testcases", "--describe-stored-sessions", "--describe-stored-testcases"),
    *("--delete-stored-sessions", "--performance-compare", "--detect-host-topology", "--version", "--help"),
)
SHORT_ACTION = re.compile(r"-[Rvq]*[hlLrV]")


def main() -> None:
    """Run ReFrame on this process's command line and exit with its code, or 2 for a system that can't be used."""
    try:
        arguments = complete(sys.argv[1:])
    except UsageError as error:
        _end(error)
    sys.argv[1:] = arguments
    from reframe.frontend import cli  # after the configuration is chosen, and not for a mistyped system

    from suites.base.listings import carry_options, show_allocations, show_scripts
    from suites.base.refusals import refuse_all

    refuse_all(cli)
    show_allocations(cli)
    show_scripts(cli)
    carry_options(cli)
    _skip_unseen_warnings()
    _tell_of_logs()
    try:
        cli.main()
    except UsageError as error:
        _end(error)


def _end(error: UsageError) -> NoReturn:
    sys.stderr.write(f"{error}\n")
    sys.exit(2)


def complete(arguments: Sequence[str]) -> list[str]:
    """Complete the command line by an action, and the environment by our configuration where none is named.

    Says on standard error when it makes the run a dry one. Raises UsageError for an unknown system or a bad file.
    """
    ours = _configure(arguments)
    wanted = _value(arguments, "--system") or os.environ.get("RFM_SYSTEM") or ""
    name, _, partition = wanted.partition(":")
    if ours:
        for known in systems.names():
            systems.load(known)  # a bad file gives one sentence here, and a stack trace in ReFrame
        if partition and name in systems.names():
            _check_partition(systems.load(name), partition)
    if not arguments or has_action(arguments):
        return list(arguments)
    if not ours or not wanted:
        return [*arguments, "--run"]
    system = systems.load(name)
    if system.is_here():
        return [*arguments, "--run"]
    sys.stderr.write(
        f"This machine, {socket.gethostname()}, is not {system.name}, so this is a dry run: job scripts are written, "
        "nothing is submitted (-r submits all the same).\n"
    )
    return [*arguments, "--dry-run"]


def _check_partition(system: systems.System, name: str) -> None:
    """Raise UsageError for a partition that the system doesn't have."""
    known = [partition.name for partition in system.partitions]
    if name not in known:
        raise UsageError(f"{system.name} has no partition {name!r}: {nearest(name, known)}")


def _configure(arguments: Sequence[str]) -> bool:
    """Name our settings in the environment unless others are named; returns whether ours are among those in force."""
    if (given := _value(arguments, "-C", "--config-file")) is not None:
        return Path(given).resolve() == SETTINGS
    if not any(map(os.environ.get, CONFIGURATION)):
        os.environ["RFM_CONFIG_FILES"] = str(SETTINGS)
    return str(SETTINGS) in os.environ.get("RFM_CONFIG_FILES", "").split(":")


def has_action(arguments: Sequence[str]) -> bool:
    """Say whether the words have an action."""
    return any(is_one_of(word, ACTIONS, SHORT_ACTION) for word in arguments)


def is_one_of(word: str, options: Iterable[str], short: re.Pattern[str]) -> bool:
    """Say whether a word is one of these options; ReFrame accepts unambiguous beginnings of long ones. short: those of
    one letter.
    """
    name = word.partition("=")[0]
    if name.startswith("--"):
        return len(name) > 2 and any(option.startswith(name) for option in options)
    return bool(short.match(name))


def _value(arguments: Sequence[str], *names: str) -> str | None:
    """Return the last value that is given to an option; None if it isn't given."""
    found = None
    for position, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in names and equals:
            found = value
        elif word in names and position + 1 < len(arguments):
            found = arguments[position + 1]
    return found


def _skip_unseen_warnings() -> None:
    """Make ReFrame ask only of a warning that is shown which line it comes from.

    At each message its log reads all variables of a test, deprecated ones with their warnings off, and yet the whole
    stack was unwound for each: two thirds of a dry run's processor time (ReFrame 4.10.4).
    """
    from reframe.core import warnings as deprecations

    off = ("ignore", None, deprecations.ReframeDeprecationWarning)

    def stack() -> list[inspect.FrameInfo]:
        return [] if warnings.filters[0][:3] == off else inspect.stack()[1:]

    deprecations.inspect = SimpleNamespace(stack=stack, getmodule=inspect.getmodule)


def _tell_of_logs() -> None:
    """Make a log that can't be written a sentence, once for each, where Python prints its stack at every message."""
    told: set[str] = set()
    usual, close = logging.Handler.handleError, logging.FileHandler.close

    def tell(handler: logging.Handler, error: OSError) -> None:
        name = str(getattr(handler, "baseFilename", "standard error"))
        if name not in told:
            told.add(name)
            complain(f"{name} can't be written: {error.strerror}. Start ReFrame in a folder that has room.")

    def handle_error(handler: logging.Handler, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, OSError):
            tell(handler, error)
        else:
            usual(handler, record)

    def close_all_the_same(handler: logging.FileHandler) -> None:
        try:
            close(handler)
        except OSError as error:
            tell(handler, error)

    logging.Handler.handleError = handle_error  # type: ignore[assignment, method-assign]
    logging.FileHandler.close = close_all_the_same  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    main()
