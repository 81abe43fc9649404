"""Results of an entry as small files: what the report reads of run reports, without what names a machine."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine import files
from engine.errors import UsageError
from measured_example.scrub import Names, own_names, scrub

REPORTS = "results/reframe"
"""Folder in which ReFrame keeps its run reports, below the one that it runs in."""
CASE = ("name", "display_name", "system", "partition", "result", "fail_phase", "fail_reason", "record", "second_record")
"""Keys of a test case that the report reads, or that tell a person which one it is."""
SESSION = ("version", "data_version")
RUN, ENDING = "run", ".json.gz"
LEVEL = 9


def pack(results: Path, out: Path, names: Names | None = None) -> list[Path]:
    """Pack what an entry left in its folder into files of another, in place of those that were there; returns them.

    The same results make the same bytes. Raises UsageError if there are none.
    """
    known = names or own_names()
    reports = sorted(results.glob(f"{REPORTS}/run-report-*.json"), key=lambda path: path.stat().st_mtime_ns)
    documents = [(path.stem, json.loads(path.read_bytes()), path) for path in sorted(results.glob("*.json"))]
    if reports:
        documents.append((RUN, prune([json.loads(path.read_bytes()) for path in reports]), reports[-1]))
    if not documents:
        raise UsageError(f"{results} has no results: run ci/example --only {results.name} --again.")
    written = [_write(out / f"{name}{ENDING}", scrub(document, known), path) for name, document, path in documents]
    for old in {*out.iterdir()} - {*written}:
        old.unlink()
    return written


def _write(path: Path, document: Any, source: Path) -> Path:
    """Write a document, whose header has the time at which its source was written."""
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False) + "\n"
    packed = gzip.compress(text.encode(), LEVEL, mtime=int(source.stat().st_mtime))
    files.write_bytes(path, packed)
    return path


def prune(reports: Sequence[Any]) -> dict[str, Any]:
    """Return run reports as one, with what the report of results reads."""
    sessions = [session for report in reports for session in report["runs"]]
    first = reports[0]["session_info"]
    return {
        "session_info": {key: first[key] for key in SESSION if key in first},
        "runs": [{"testcases": [_case(case) for case in session["testcases"]]} for session in sessions],
    }


def _case(case: dict[str, Any]) -> dict[str, Any]:
    return {key: case[key] for key in CASE if case.get(key) not in (None, {}, "")}
