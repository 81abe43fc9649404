"""Find and read every result under the given folders, each run once.

A run is found as a result file of its own, inside a run report of ReFrame or in ReFrame's results database
(run_reports.py). One whose test found its result wrong has failed, also where the result file says that it ended well.
Plans and validations of the performance model are files of their own. What can't be read is kept with the reason, so
that the report can list it.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from engine.errors import UsageError
from engine.planning.document import SCHEMA as PLAN
from engine.planning.document import GridPlan
from engine.result.schema import SCHEMA, Result, ResultError, checked, gpu_check, parse, peers
from engine.validation.document import SCHEMA as VALIDATION
from engine.validation.document import Validation
from reports.read import compressed, run_reports
from reports.read.history import History, histories
from reports.read.plausible import impossible, impossible_contest, impossible_plan, not_positive
from reports.read.run_reports import StoredResult
from reports.text import clean

MOST_RANKS = 2**31
NEVER = datetime.min.replace(tzinfo=UTC)
T = TypeVar("T")
PREDICTIONS = (PLAN, VALIDATION)
DATABASES = (".db", f".db{compressed.SUFFIX}")
ENDINGS = (".json", compressed.ENDING, *DATABASES)
"""Endings of the files that may hold results."""


@dataclass(frozen=True)
class Found(Generic[T]):
    """Record found in a file; the remark tells why its test failed although the result is good.

    Of a plan or validation it is known when the file was written.
    """

    result: T
    source: str
    remark: str = ""
    written: datetime = NEVER


Run = Found[Result]
Contests = Found[peers.PeersResult]
"""One command's measurements against peers."""
Checked = Found[gpu_check.GpuCheck]
"""The findings of one run of ci/gpu."""
Planned = Found[GridPlan]
Validated = Found[Validation]


@dataclass(frozen=True, slots=True)
class Skipped:
    """File that can't be in the report, and why."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """All records that were found. duplicates are runs met again, test cases without_record measured nothing, and
    histories are each system's nights.
    """

    folders: tuple[str, ...]
    runs: tuple[Run, ...]
    skipped: tuple[Skipped, ...]
    files: int
    duplicates: int
    without_record: int
    contests: tuple[Contests, ...] = ()
    checks: tuple[Checked, ...] = ()
    plans: tuple[Planned, ...] = ()
    validations: tuple[Validated, ...] = ()
    histories: tuple[History, ...] = ()

    @property
    def statuses(self) -> list[str]:
        """Return the status of every job, "ok" or "failed"; a check of a GPU may be "undecided"."""
        runs, contests = ([found.result.status for found in some] for some in (self.runs, self.contests))
        return [*runs, *contests, *(found.result.status for found in self.checks)]


def check_folders(folders: Iterable[Path]) -> None:
    for folder in folders:
        if not folder.is_dir():
            what = "is a file" if folder.exists() else "does not exist"
            raise UsageError(f"--results takes folders, but {folder} {what}: give the folder that holds the results.")


def load(folders: Sequence[Path]) -> Loaded:
    """Read everything under the folders. Raises UsageError for a folder that isn't there."""
    check_folders(folders)
    skipped: list[Skipped] = []
    results: list[StoredResult] = []
    reported: list[StoredResult] = []
    databases: dict[Path, list[run_reports.Session]] = {}
    files = 0
    for path in _files(folders):
        if not path.name.endswith(DATABASES):
            found = _read_json(path, skipped)
            if found is None:
                continue
            kept = results if isinstance(found, StoredResult) else reported
            kept.extend([found] if isinstance(found, StoredResult) else found)
        else:
            try:
                databases[path] = list(run_reports.sessions(path))
                reported.extend(run_reports.from_sessions(path, databases[path]))
            except ResultError as error:
                skipped.append(Skipped(str(path), str(error)))
        files += 1

    by_schema: dict[str, list[Found[Any]]] = {schema: [] for schema in READERS}
    seen: set[str] = set()
    duplicates = without_record = 0
    known = [(_identity(record.data), record) for record in reported if record.data is not None]
    failures = {run: record.failure for run, record in known if record.failure}  # which the result file may not know of
    remarks = {run: record.remark for run, record in known if record.remark}
    for record in results + reported:  # a result file is named as the source before a report that repeats it
        if record.data is None:
            without_record += 1
            if record.failure:
                skipped.append(Skipped(record.source, f"no result was written: {clean(record.failure)}"))
            continue
        identity = _identity(record.data)
        if identity in seen:
            duplicates += 1
            continue
        data = record.judged(failures[identity]) if identity in failures else record.data
        schema = data.get("schema")
        schema = schema if schema in READERS else SCHEMA
        try:
            read = READERS[schema](data, record.source)
            written = _written(record.source) if schema in PREDICTIONS else NEVER
        except ResultError as error:
            skipped.append(Skipped(record.source, str(error)))
        else:
            by_schema[schema].append(Found(read, record.source, remarks.get(identity, ""), written))
            seen.add(identity)
    runs, contests, checks, plans, validations = (tuple(some) for some in by_schema.values())
    return Loaded(
        tuple(map(str, folders)),
        runs,
        tuple(skipped),
        files,
        duplicates,
        without_record,
        contests,
        checks,
        plans,
        validations,
        tuple(histories(list(databases.values()))),
    )


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    """Give every *.json and *.db, also compressed, each real file once, in a fixed order. Hidden ones are half-written
    or not ours.
    """
    met: set[Path] = set()
    for folder in folders:
        for root, below, names in os.walk(folder):
            below[:] = sorted(name for name in below if not name.startswith("."))
            for name in sorted(names):
                path = Path(root, name)
                if name.startswith(".") or not name.endswith(ENDINGS):
                    continue
                real = path.resolve()
                if real not in met:
                    met.add(real)
                    yield path


def _read_json(path: Path, skipped: list[Skipped]) -> StoredResult | list[StoredResult] | None:
    """Return a result, the results of a run report, or None for a file that is neither."""
    try:
        data = json.loads(compressed.read_bytes(path))
    except (*compressed.BROKEN, ValueError, RecursionError):
        skipped.append(Skipped(str(path), f"{path} is cut short or is not JSON: run its test once more."))
        return None
    except OSError as error:
        skipped.append(Skipped(str(path), f"{path} can't be read: {error.strerror}."))
        return None
    if isinstance(data, dict) and data.get("schema") in (*run_reports.SCHEMAS, *PREDICTIONS):
        return StoredResult(str(path), data)
    if run_reports.is_run_report(data):
        return list(run_reports.stored_results(data, str(path)))
    return None


def _parse(data: dict[str, Any], source: str) -> Result:
    result = parse(data, source)
    if not 0 < result.ranks < MOST_RANKS:
        raise ResultError(f"{source} is not a valid result: its ranks are {result.ranks}, not 1 or more.")
    _refuse(impossible(result), source)
    return result


def _contests(data: dict[str, Any], source: str) -> peers.PeersResult:
    result = peers.parse(data, source)
    _refuse(impossible_contest(result), source)
    return result


def _plan(data: dict[str, Any], source: str) -> GridPlan:
    plan = checked(GridPlan, "plan", data, source)
    _check_devices(plan.devices, f"{source} is not a valid plan")
    _refuse(impossible_plan(plan), source)
    return plan


def _validation(data: dict[str, Any], source: str) -> Validation:
    found = checked(Validation, "validation of the performance model", data, source)
    for row in found.published:
        _check_devices(row.devices, f"{source} is not a valid validation")
    _refuse(not_positive(found), source)
    return found


def _refuse(wrong: str | None, source: str) -> None:
    """Leave out what no machine can have done, which wrong says as a clause."""
    if wrong is not None:
        raise ResultError(f"{source} can't be: {wrong}.")


def _check_devices(devices: int, what: str) -> None:
    if not 0 < devices < MOST_RANKS:
        raise ResultError(f"{what}: its devices are {devices}, not 1 or more.")


READERS: dict[str, Callable[[dict[str, Any], str], Any]] = {
    SCHEMA: _parse,
    peers.SCHEMA: _contests,
    gpu_check.SCHEMA: gpu_check.parse,
    PLAN: _plan,
    VALIDATION: _validation,
}
"""A record's schema says how it is read; one without any is a result."""


def _written(source: str) -> datetime:
    try:
        return compressed.written(Path(source))
    except OSError as error:
        raise ResultError(f"{source} can't be read: {error.strerror}.") from None


def _identity(data: dict[str, Any]) -> str:
    """One run is told from another by who ran what, where and when, and a prediction by all that it says."""
    if data.get("schema") in PREDICTIONS:
        return json.dumps(data, sort_keys=True)
    provenance = data.get("provenance")
    where = provenance if isinstance(provenance, dict) else {}
    parts = [data.get(key) for key in ("version", "kind", "status", "ranks", "labels", "config", "case", "contests")]
    return json.dumps([*parts, *(where.get(key) for key in ("start", "end", "hosts"))], sort_keys=True)
