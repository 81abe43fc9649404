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

from engine.result import gpu_check, peers
from engine.result.schema import SCHEMA, ResultError
from reports.text import clean

RECORD = "record"
SCHEMAS = (SCHEMA, peers.SCHEMA, gpu_check.SCHEMA)
"""What a record can be."""
AFTER_SANITY = ("performance", "cleanup", "finalize")
"""The stages of a test case that come once its result has been found good."""


@dataclass(frozen=True, slots=True)
class StoredResult:
    """A result as decoded JSON, not yet checked. data is None where a test case measured nothing.

    failure: why its test case failed, None for one that did not fail, or failed only once its result was found good;
    remark: why that one failed.
    """

    source: str
    data: dict[str, Any] | None
    failure: str | None = None
    remark: str = ""

    def judged(self, failure: str) -> dict[str, Any]:
        """The data as that of a run that failed for this reason, unless it says so itself.

        A contest is as one that was asked for and not held. Without data there is none.
        """
        data = self.data or {}
        if data.get("status", "ok") != "ok":
            return data
        data = data | {"status": "failed", "reason": failure}
        if data.get("schema") == peers.SCHEMA:
            held = data.get("comparisons")
            asked = data.get("contests") or [
                {key: value for key, value in one.items() if key in peers.Asked.model_fields}
                for one in (held if isinstance(held, list) else ())
                if isinstance(one, dict)
            ]
            data |= {"contests": asked, "comparisons": []}
        return data


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
            failure, phase = _failure(case)
            if not isinstance(data, dict) or not data:
                yield StoredResult(where, None, failure if case.get("result") == "fail" else None)
            elif phase in AFTER_SANITY:
                yield StoredResult(where, data, remark=failure or "")
            else:
                yield StoredResult(where, data, failure)


def _failure(case: dict[str, Any]) -> tuple[str | None, str]:
    """Why a test case failed, on one line, None if it did not; and the stage in which it did, "" if it isn't told."""
    if case.get("result") not in ("fail", "abort"):
        return None, ""
    words = " ".join(str(case.get("fail_reason") or "no reason given").split())
    return clean(words), str(case.get("fail_phase") or "")


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
