"""The `reframe` command is ReFrame's own, which knows our systems and what to do when no action is given.

    reframe -c suites/weak_scaling.py --system frontier

runs there; on any other machine it says so and makes a dry run. All options are ReFrame's own, and an action that is
given (-r, -l, --dry-run ...) is respected. A selection that matches no test is an error, which ReFrame calls a pass.
A list (-l, -L) ends with what its tests cost at most.

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
from typing import Any

import systems
from engine.errors import UsageError
from engine.output import complain

SETTINGS = Path(systems.__file__).with_name("settings.py")
CONFIGURATION = ("RFM_CONFIG_FILES", "RFM_CONFIG_PATH", "RFM_CONFIG_FILE")
ACTIONS = (
    *("--run", "--dry-run", "--list", "--list-detailed", "--list-tags", "--describe", "--show-config", "--ci-generate"),
    *("--list-stored-sessions", "--list-stored-testcases", "--describe-stored-sessions", "--describe-stored-testcases"),
    *("--delete-stored-sessions", "--performance-compare", "--detect-host-topology", "--version", "--help"),
)
SHOWN_OF_A_FIXTURE = ("unique_name", "nodes", "time_limit_s", "node_hours")
SHORT_ACTION = re.compile(r"-[Rvq]*[hlLrV]")


def main() -> None:
    """Run ReFrame on this process's command line and exit with its code, or 2 for a system that can't be used."""
    try:
        arguments = complete(sys.argv[1:])
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    sys.argv[1:] = arguments
    from reframe.frontend import cli  # after the configuration is chosen, and not for a mistyped system

    _refuse_no_tests(cli)
    _show_allocations(cli)
    _skip_unseen_warnings()
    _tell_of_logs()
    cli.main()


def complete(arguments: Sequence[str]) -> list[str]:
    """Complete the command line by an action, and the environment by our configuration where none is named.

    Says on standard error when it makes the run a dry one. Raises UsageError for an unknown system or a bad file.
    """
    ours = _configure(arguments)
    if ours:
        for name in systems.names():
            systems.load(name)  # a bad file gives one sentence here, and a stack trace in ReFrame
    if not arguments or has_action(arguments):
        return list(arguments)
    wanted = _value(arguments, "--system") or os.environ.get("RFM_SYSTEM")
    if not ours or wanted is None:
        return [*arguments, "--run"]
    system = systems.load(wanted.partition(":")[0])
    if system.is_here():
        return [*arguments, "--run"]
    sys.stderr.write(
        f"This machine, {socket.gethostname()}, is not {system.name}, so this is a dry run: job scripts are written, "
        "nothing is submitted (-r submits all the same).\n"
    )
    return [*arguments, "--dry-run"]


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


def _refuse_no_tests(cli: Any) -> None:
    """Make ReFrame's command line fail where it would list or run no test at all."""
    from reframe.core.exceptions import ReframeError

    def require(tests: Sequence[Any]) -> None:
        if not tests:
            raise ReframeError(
                "no test matches the selection: check -c, -n, -t and --system, or list all tests with -c suites -R -l"
            )

    class Runner(cli.Runner):
        def runall(self, testcases: Sequence[Any], restored_cases: Sequence[Any] | None = None) -> None:
            super().runall(testcases, restored_cases)
            require([*testcases, *(restored_cases or ())])

    list_checks = cli.list_checks

    def list_some(testcases: Sequence[Any], *arguments: Any) -> None:
        require(testcases)
        list_checks(testcases, *arguments)

    cli.Runner, cli.list_checks = Runner, list_some


def _show_allocations(cli: Any) -> None:
    """Make ReFrame's lists end with what their tests cost at most, and tests described name the jobs of their fixtures,
    which ReFrame leaves out.
    """
    list_checks, describe_checks = cli.list_checks, cli.describe_checks

    def list_all(testcases: Sequence[Any], printer: Any, *arguments: Any) -> None:
        list_checks(testcases, printer, *arguments)
        if sentence := allocation([case.check for case in testcases]):
            printer.info(f"{sentence}\n")

    def describe_all(testcases: Sequence[Any], printer: Any) -> None:
        for case in testcases:
            for check in _ours([case.check]):
                needed = sorted(_ours(_needed(case)), key=lambda one: str(one.unique_name))
                fixtures = [one for one in needed if one.is_fixture()]
                check.fixture_jobs = [{name: getattr(one, name) for name in SHOWN_OF_A_FIXTURE} for one in fixtures]
        describe_checks(testcases, printer)

    cli.list_checks, cli.describe_checks = list_all, describe_all


def allocation(checks: Iterable[Any]) -> str | None:
    """Say what these tests and fixtures take together, in a sentence; None if none of them is ours."""
    jobs = [check for check in _ours(checks) if check.nodes]
    if not jobs:
        return None
    tests, nodes = sum(not job.is_fixture() for job in jobs), max(job.nodes for job in jobs)
    hours, minutes = sum(job.node_hours for job in jobs), sum(job.time_limit_s for job in jobs) / 60
    return (
        f"{tests} test{'s' * (tests != 1)}, at most {hours:.1f} node-hours: up to {nodes} node{'s' * (nodes != 1)}, "
        f"{minutes:.0f} minutes one after the other"
    )


def _ours(checks: Iterable[Any]) -> list[Any]:
    """Return the tests that say what they take of an allocation (suites/base/allocation.py)."""
    return [check for check in checks if hasattr(check, "node_hours")]


def _needed(case: Any) -> set[Any]:
    """Return all tests and fixtures that come before a test case."""
    return {check for other in case.deps for check in (other.check, *_needed(other))}


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
