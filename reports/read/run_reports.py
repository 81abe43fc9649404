"""Results inside ReFrame's own output: run reports (JSON) and the results database (SQLite).

A suite keeps the whole result of a run in its loggable variable `record`, so a session's report is enough to
rebuild ours. Format: ReFrame 4.10, run report data version 4.2.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.result.schema import SCHEMA, ResultError, gpu_check, peers
from reports.read import compressed
from reports.text import clean

RECORD, SECOND_RECORD = "record", "second_record"
SCHEMAS = (SCHEMA, peers.SCHEMA, gpu_check.SCHEMA)
"""Schemas of a record."""
DATA_VERSION = 4
"""Newer major versions of ReFrame's report data are refused."""
LOCK_TIMEOUT_S = 10
Session = tuple[str, dict[str, Any] | None]
"""Name of a session and its run report; None for an invalid one."""
AFTER_SANITY = ("performance", "cleanup", "finalize")
"""Stages of a test case after its result has been found good."""


@dataclass(frozen=True, slots=True)
class StoredResult:
    """Result as decoded JSON, not yet checked. data is None where a test case measured nothing.

    failure says why its test case failed, None for one that did not fail, or failed only once its result was found
    good; the remark says why that one failed.
    """

    source: str
    data: dict[str, Any] | None
    failure: str | None = None
    remark: str = ""

    def judged(self, failure: str) -> dict[str, Any]:
        """Give the data as that of a run that failed for this reason, unless it says so itself.

        A contest is as one that was asked for and not run. Without data there is none.
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
    """Say whether a decoded JSON document is a run report."""
    return isinstance(data, dict) and "session_info" in data and isinstance(data.get("runs"), list)


def stored_results(report: dict[str, Any], source: str) -> Iterator[StoredResult]:
    """Give the record of every test case that leaves a result or a contest with peers.

    Test cases of other suites carry no such variable, and a record of another schema is neither. A job that trained
    twice has a second one.
    """
    for session in report["runs"]:
        cases = session.get("testcases") if isinstance(session, dict) else None
        for case in cases if isinstance(cases, list) else ():
            if not isinstance(case, dict) or RECORD not in case:
                continue
            where = f"{source}, test case {case.get('display_name') or case.get('name')}"
            data = case[RECORD]
            if isinstance(data, dict) and data.get("schema", SCHEMA) not in SCHEMAS:
                continue
            reason, phase = failure(case)
            if not isinstance(data, dict) or not data:
                yield StoredResult(where, None, reason if case.get("result") == "fail" else None)
            elif phase in AFTER_SANITY:
                yield StoredResult(where, data, remark=reason or "")
            else:
                yield StoredResult(where, data, reason)
            if isinstance(second := case.get(SECOND_RECORD), dict) and second:
                yield StoredResult(f"{where}, second training", second)


def failure(case: Mapping[str, Any]) -> tuple[str | None, str]:
    """Say why a test case failed, on one line, None if it did not; and the stage in which it did, "" if unknown."""
    if case.get("result") not in ("fail", "abort"):
        return None, ""
    words = " ".join(str(case.get("fail_reason") or "no reason given").split())
    return clean(words), str(case.get("fail_phase") or "")


def from_sessions(path: Path, stored: Iterable[Session]) -> Iterator[StoredResult]:
    """Say what every session of a results database has stored."""
    for uuid, report in stored:
        if report is None:
            yield StoredResult(f"{path}, session {uuid}", None, "the session is cut short or is not JSON")
        else:
            yield from stored_results(report, f"{path}, session {uuid}")


def sessions(path: Path) -> Iterator[Session]:
    """Every session of a results database in the order in which they were stored; none if it is another database. The
    file is opened read-only.

    Raises ResultError if it can't be read as a database, or is of a ReFrame whose format is newer than this.
    """
    try:
        with closing(_opened(path)) as opened:
            tables = {name for (name,) in opened.execute("SELECT name FROM sqlite_master")}
            if "sessions" not in tables:
                return
            for uuid, blob in opened.execute("SELECT uuid, json_blob FROM sessions ORDER BY rowid"):
                try:
                    report = json.loads(blob)
                except (TypeError, ValueError, RecursionError):
                    yield uuid, None
                    continue
                if is_run_report(report):
                    _refuse_newer(report, path)
                    yield uuid, report
                else:
                    yield uuid, None
    except (sqlite3.Error, *compressed.BROKEN) as error:
        raise ResultError(f"{path} can't be read as a results database: {_remedy(error, path)}.") from None


def _opened(path: Path) -> sqlite3.Connection:
    """Open a database read-only, a compressed one in memory."""
    if path.suffix != compressed.SUFFIX:
        return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=LOCK_TIMEOUT_S)
    opened = sqlite3.connect(":memory:")
    opened.deserialize(compressed.read_bytes(path))
    return opened


def _remedy(error: Exception, path: Path) -> str:
    """Say what went wrong, and what to do where that is known."""
    if isinstance(error, compressed.BROKEN):
        return "it is cut short or damaged; put a copy of it back"
    if "locked" in str(error):
        return f"another program has had it locked for {LOCK_TIMEOUT_S} s, wait until that has ended"
    if "malformed" in str(error) or "not a database" in str(error):
        return f"{error}, it was cut short or is damaged; put a copy of it back, or move it away to begin a new one"
    if "no such column" in str(error):
        return f"{error}, another ReFrame than Par4D's has made it; move it away to begin a new one"
    if path.is_dir():
        return "it is a folder; name the file in it"
    return str(error)


def _refuse_newer(report: dict[str, Any], path: Path) -> None:
    """Raise ResultError for a session in a format that didn't exist when this was written."""
    info = report["session_info"]
    version = str(info.get("data_version") or "") if isinstance(info, dict) else ""
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) > DATA_VERSION:
        by = f"ReFrame {info.get('version')}, which is newer" if isinstance(info, dict) else "a newer ReFrame"
        raise ResultError(
            f"{path} can't be read as a results database: it was written by {by} than this Par4D knows (report data "
            f"version {version}, known up to {DATA_VERSION}): update Par4D."
        )
