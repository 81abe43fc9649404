"""`par4d reference make` makes references, and `par4d verdict` judges nights by them."""

import sys
import traceback
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

import systems
from engine.cli.written import Json, write
from engine.errors import EngineError, RunError, UsageError
from reports import text
from reports.nights.history import DATABASE
from systems.references import FEWEST_JOBS, Key

System = Annotated[str | None, Parameter(metavar="NAME", help="of which system (default: this machine)")]
Database = Annotated[Path, Parameter(metavar="FILE", help="ReFrame's results database, which is only read")]


def make(
    *,
    system: System = None,
    since: Annotated[
        str | None, Parameter(metavar="DATE", help="leave out what began before, such as 2026-11-01")
    ] = None,
    min_jobs: Annotated[
        int, Parameter(metavar="N", help="of a test, so that its figures get a reference")
    ] = FEWEST_JOBS,
    json: Json = False,
    database: Database = DATABASE,
) -> int:
    """Make a system's references of the jobs in ReFrame's database: median and spread of every figure.

      par4d reference make --system perlmutter --since 2026-11-01

    They are kept in systems/references/NAME.yaml, with dates, versions and commits; a test that has too few jobs keeps
    the reference that it had. From then on ReFrame itself fails what is far off them, and `par4d verdict` judges by
    them. After an update that is meant to stay make them anew with --since that night, as soon as there are jobs
    enough: its alarms end with it.
    """
    from reports.nights.history import history
    from reports.nights.reference import make as make_references
    from reports.nights.report import named

    if min_jobs < FEWEST_JOBS:
        raise UsageError(f"--min-jobs is at least {FEWEST_JOBS}: fewer don't tell how a figure varies.")
    name = _name(system)
    found = history(database, name, since=_date(since))
    _say(found.remarks)
    try:
        made = make_references(found, min_jobs)
    except OSError as error:
        raise RunError(f"The references can't be written: {error.strerror or error}.") from None
    figures = sum(len(one.figures) for one in made.series)
    new, kept = text.plural(len(made.series), "test"), text.plural(len(made.kept), "other test")
    if made.spoilt:
        _say([f"{made.spoilt} What it held is lost."])
    head = f"New references: {new}, {text.plural(figures, 'figure')}.{f' Kept: {kept}.' if made.kept else ''}"
    names = named([*(one.key for one in made.series), *made.short])
    words = [head, *(_night(names[one.key], one) for one in made.series), *_few(names, made.short), str(made.path)]
    written = systems.references.read(made.path, name)
    write("\n".join(words), written.model_dump(mode="json", by_alias=True), as_json=json)
    return 0


def verdict(
    *,
    system: System = None,
    last: Annotated[int, Parameter(metavar="N", help="so many nights")] = 1,
    json: Json = False,
    database: Database = DATABASE,
) -> int:
    """Did it get slower? Judges the figures of the last night against references and the nights before; runs nothing.

      par4d verdict --system perlmutter
      par4d verdict --system vcluster --last 30 --json

    exit code: 0 fine, 1 something got worse or failed, 2 couldn't judge all of it (of several nights: of the last).
    """
    from reports.nights import summary
    from reports.nights.history import history
    from reports.nights.report import UNKNOWN, night_reports

    if last < 1:
        raise UsageError(f"--last is 1 or more nights, but {last} was given.")
    name = _name(system)
    try:
        found = history(database, name)
        nights = night_reports(found, systems.references.references(name), last=last)
        words = summary.as_json(*nights) + "\n" if json else "\n".join(map(summary.as_text, nights))
    except EngineError:
        raise
    except Exception:  # an exit code of 1 would blame the machine
        traceback.print_exc()
        _say(["This is an error of par4d verdict itself: nothing is known of the night."])
        return UNKNOWN
    sys.stdout.write(words)
    if not nights:
        _say([*found.remarks, f"{database} has no night of {name}: run ci/nightly --system {name}."])
        return UNKNOWN
    return nights[-1].code


def reference() -> App:
    app = App(name="reference", help="What a system's tests usually measure.")
    app.command(make)
    return app


def _name(system: str | None) -> str:
    return (systems.load(system) if system else systems.here()).name


def _date(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"--since is a date such as 2026-11-01, but {text!r} was given.") from None
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def _night(name: str, series: "systems.references.ReferenceSet") -> str:
    one = next(iter(series.figures.values()))
    words = f"  {name}: {one.jobs} jobs of {series.nights} night{'s' * (series.nights > 1)}"
    return words if series.nights > 4 else f"{words}, which tell little of how nights differ"


def _few(names: Mapping[Key, str], short: Mapping[Key, int]) -> list[str]:
    return [f"  {names[key]}: none, as there are {jobs} jobs only" for key, jobs in short.items()]


def _say(lines: Sequence[str]) -> None:
    sys.stderr.write("".join(f"{line}\n" for line in lines))
