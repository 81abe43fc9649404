"""The program `par4d`: the engine's commands, and `report` beside them.

It has its home here because the engine knows nothing of reports, while reports read what the engine writes.
"""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

from engine.cli.main import commands, run


def report(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Make an HTML report of what was measured, as `python -m reports` does: par4d report build --out site/."""
    from reports.cli import main as report_main  # pandas and matplotlib, which no other command waits for

    return report_main(words)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    app = commands("par4d")
    app.command(report, help_flags=())  # --help is for the report's own command line
    return run(app, argv)
