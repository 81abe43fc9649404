"""Results inside ReFrame's own output: run reports (JSON) and the results database (SQLite).

A suite keeps the whole result of a run in its loggable variable `record`, so a session's report is enough to
rebuild ours. Format: ReFrame 4.10, run report data version 4.2.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.result import peers
from engine.result.schema import SCHEMA, ResultError

RECORD = "record"
SCHEMAS = (SCHEMA, peers.SCHEMA)
"""What a record can be."""


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A result as decoded JSON, not yet checked. data is None where a test case measured nothing.

    failure: why a test case without a result failed, None for one that did not fail (a dry run).
    """

    source: str
    data: dict[str, Any] | None
    failure: str | None = None


def is_run_report(data: object) -> bool:
    """Whether a decoded JSON document is a run report."""
    return isinstance(data, dict) and "session_info" in data and isinstance(data.get("runs"), list)


def stored_results(report: dict[str, Any], source: str) -> list[StoredResult]:
    """The record of every test case that leaves a result or a contest with peers.

    Test cases of other suites carry no such variable, and a record of another schema is neither.
    """
    return list(_stored_results(report, source))


def _stored_results(report: dict[str, Any], source: str) -> Iterator[StoredResult]:
    for session in report["runs"]:
        cases = session.get("testcases") if isinstance(session, dict) else None
        for case in cases if isinstance(cases, list) else ():
            if not isinstance(case, dict) or RECORD not in case:
                continue
            where = f"{source}, test case {case.get('display_name') or case.get('name')}"
            data = case[RECORD]
            if isinstance(data, dict) and data.get("schema", SCHEMA) not in SCHEMAS:
                continue
            if isinstance(data, dict) and data:
                yield StoredResult(where, data)
            else:
                failed = case.get("result") == "fail"
                yield StoredResult(where, None, str(case.get("fail_reason") or "no reason given") if failed else None)


def from_database(path: Path) -> list[StoredResult]:
    """What every session in a results database has stored, opened read-only; none if it is another database.

    Raises ResultError if the file can't be read as a database.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=10)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
            if "sessions" not in tables:
                return []
            rows = connection.execute("SELECT uuid, json_blob FROM sessions ORDER BY session_start_unix").fetchall()
    except sqlite3.Error as error:
        raise ResultError(f"{path} can't be read as a results database: {error}.") from None
    found: list[StoredResult] = []
    for uuid, blob in rows:
        try:
            report = json.loads(blob)
        except (TypeError, ValueError, RecursionError):
            found.append(StoredResult(f"{path}, session {uuid}", None, "the session is cut short or is not JSON"))
            continue
        if is_run_report(report):
            found.extend(_stored_results(report, f"{path}, session {uuid}"))
    return found
