"""The program `par4d`: the engine's commands, and beside them those that read results or start suites.

It has its home here because the engine knows nothing of reports and suites, while they read what the engine writes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from engine.cli.common import Json, facts, write
from engine.cli.main import commands, run
from engine.output import log_to_stderr
from reports.accept import accept
from reports.nights.commands import reference, verdict
from reports.reproduce import reproduce
from systems.store import as_data


def report(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Make an HTML report of what was measured, as `python -m reports` does: par4d report build --out site/."""
    from reports.cli import main as report_main  # pandas and matplotlib, which no other command waits for

    return report_main(words)


def calibrate(
    *,
    system: Annotated[str | None, Parameter(metavar="NAME")] = None,
    results: Annotated[Path | None, Parameter(metavar="DIR", help="fit to what an earlier run has measured")] = None,
    timeout: Annotated[float, Parameter(metavar="SECONDS", help="for all tests, and their time in a queue")] = 86400.0,
    json: Json = False,
) -> int:
    """Measure what `par4d plan` takes of a machine: its links, its devices, and four numbers that a fit finds.

    Runs what `reframe --tag calibration` selects from suites/, and writes systems/measured/NAME.yaml with the device
    and the date. On vcluster it takes less than five minutes, after `ci/cluster up`.

      par4d calibrate --system vcluster

    Parameters
    ----------
    system
        which (default: this machine)
    """
    from engine.errors import UsageError
    from suites.calibrate import calibrated, numbers

    if not timeout > 0:
        raise UsageError(f"--timeout is a positive number, but {timeout:g} was given.")
    log_to_stderr(0)
    file, found = calibrated(system, timeout_s=timeout, results=results)
    write(f"{facts(numbers(found))}\n{file}", as_data(found), as_json=json)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    app = commands("par4d")
    app.command(calibrate)
    app.command(reference())
    app.command(verdict)
    app.command(reproduce)
    app.command(accept)
    app.command(report, help_flags=())  # --help is for the report's own command line
    return run(app, argv)
