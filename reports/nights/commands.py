"""`par4d reference make` makes references, and `par4d verdict` judges nights by them."""

import traceback
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

import systems
from engine import files
from engine.cli.common import Json
from engine.errors import EngineError, RunError, UsageError
from engine.options import check_file
from engine.output import complain, say
from reports import text
from reports.read.history import DATABASE
from systems import references
from systems.files import SystemFileError

System = Annotated[str | None, Parameter(metavar="NAME", help="of which system (default: this machine)")]
Database = Annotated[Path, Parameter(metavar="FILE", help="ReFrame's results database, which is only read")]
Since = Annotated[datetime | None, Parameter(metavar="DATE", help="leave out what began before, such as 2026-11-01")]


def make(*, system: System = None, since: Since = None, database: Database = DATABASE) -> int:
    """Make a system's references of the jobs in ReFrame's database: median and spread of every figure.

    They are kept in systems/references/NAME.yaml, with dates, versions and commits; a test that has too few jobs keeps
    the reference that it had. From then on ReFrame itself fails what is far off them, and `par4d verdict` judges by
    them. After an update that is meant to stay make them anew with --since that night, as soon as there are jobs
    enough: that explains its episodes.

      par4d reference make --system perlmutter --since 2026-11-01
    """
    from reports.nights.reference import make as make_references
    from reports.nights.report import name_tests
    from reports.read.history import history

    name, old = systems.named(system).name, None
    past = history(database, name)
    if since:
        first = since if since.tzinfo else since.replace(tzinfo=UTC)
        past = replace(past, nights=tuple(night for night in past.nights if night.began >= first))
    _complain(*past.remarks)
    try:
        old = references.references(name)
    except SystemFileError as error:
        _complain(f"{error} They are made anew, without what it holds.")
    try:
        new = make_references(past, old)
    except OSError as error:
        raise RunError(f"The references can't be written: {error.strerror or error}.") from None
    kept = {one.key for one in old.series} - new.keys() if old else set()
    figures = sum(len(one.figures) for one in new.values())
    summary = f"New references: {text.plural(len(new), 'test')}, {text.plural(figures, 'figure')}."
    summary += f" Kept: {text.plural(len(kept), 'other test')}.\n" if kept else "\n"
    if few := [test for key, test in name_tests(past).items() if key not in new]:
        summary += f"Too few jobs: {', '.join(few)}.\n"
    say(f"{summary}{references.path_of(name)}\n", kept=True)
    return 0


def verdict(
    *,
    system: System = None,
    last: Annotated[int, Parameter(metavar="N", help="number of nights")] = 1,
    database: Database = DATABASE,
    json: Json = False,
    out: Annotated[Path | None, Parameter(metavar="FILE", help="write the document for programs there, too")] = None,
    openmetrics: Annotated[Path | None, Parameter(metavar="FILE", help="write verdicts as OpenMetrics there")] = None,
) -> int:
    """Did it get slower? Judges the figures of the last night against references and the nights before; runs nothing.

    exit code: 0 nothing new got worse, 1 an episode opened or a test failed, 2 couldn't judge all of it (of several
    nights: of the last).

      par4d verdict --system perlmutter
      par4d verdict --system vcluster --last 30
      par4d verdict --system vcluster --json --openmetrics night.txt
    """
    from reports.nights.exports import as_json, as_openmetrics
    from reports.nights.report import UNKNOWN, as_text, night_reports
    from reports.read.history import history

    if last < 1:
        raise UsageError(f"--last is 1 or more nights, but {last} was given.")
    for option, file in (("--out", out), ("--openmetrics", openmetrics)):
        if file is not None:
            check_file(option, file)
    name = systems.named(system).name
    try:
        past = history(database, name)
        nights = night_reports(past, references.references(name), last=last)
        for file, form in ((out, as_json), (openmetrics, as_openmetrics)):
            if file is not None:
                files.write_text(file, form(*nights))
        say(as_json(*nights) if json else "\n".join(map(as_text, nights)))
    except EngineError:
        raise
    except Exception:  # an exit code of 1 would blame the machine
        traceback.print_exc()
        complain("This is an error of par4d verdict itself: nothing is known of the night.")
        return UNKNOWN
    if not nights:
        _complain(*past.remarks, f"{database} has no night of {name}: run ci/nightly --system {name}.")
        return UNKNOWN
    return nights[-1].code


def reference() -> App:
    app = App(name="reference", help="What a system's tests usually measure.")
    app.command(make)
    return app


def _complain(*lines: str) -> None:
    for line in lines:
        complain(line)
