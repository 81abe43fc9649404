"""Results of an entry as small files: what the report reads of run reports, without what names a machine.

An entry that has made references is one of nights: its database is packed with what a night reads of each job, and its
references beside it.
"""

import gzip
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from engine import files, yaml_text
from engine.errors import UsageError
from measured_example.scrub import Names, own_names, scrub
from reports.read.history import CHOSEN, DATABASE, NIGHT, NightResult
from reports.read.run_reports import RECORD, sessions
from systems.files import write
from systems.references import NOTICE, References, ReferenceSet, digest

REPORTS = "results/reframe"
"""Folder in which ReFrame keeps its run reports, below the one that it runs in."""
CASE = ("name", "display_name", "system", "partition", "result", "fail_phase", "fail_reason", "record", "second_record")
"""Keys of a test case that the report reads, or that tell a person which one it is."""
SESSION = ("version", "data_version")
RUN, ENDING = "run", ".json.gz"
REFERENCES, NIGHTS = "references", "nights.db.gz"
"""Folder of an entry's references, and what its database is packed as."""
OF_A_NIGHT = ("time_start_unix", NIGHT, CHOSEN)
CASE_OF_A_NIGHT = ("perfvalues", "executable_opts", "num_tasks", "nodes", "time_run", "time_limit_s")
RECORD_OF_A_NIGHT = ("status", "dtype", "grid", "config", *NightResult.model_fields)
"""Keys that a night reads besides, of a session, a test case and its result."""
OTHER_SCHEMA = "par4d.night"
"""Schema of such a part of a result, so that the report doesn't take it for a whole one."""
LEVEL = 9


def pack(results: Path, out: Path, names: Names | None = None) -> list[Path]:
    """Pack what an entry left in its folder into files of another, in place of those that were there; returns them.

    The same results make the same bytes. Raises UsageError if there are none.
    """
    known = names or own_names()
    if (results / REFERENCES).is_dir():
        return pack_nights(results, out, known)
    reports = sorted(results.glob(f"{REPORTS}/run-report-*.json"), key=lambda path: path.stat().st_mtime_ns)
    documents = [(path.stem, json.loads(path.read_bytes()), path) for path in sorted(results.glob("*.json"))]
    if reports:
        documents.append((RUN, prune([json.loads(path.read_bytes()) for path in reports]), reports[-1]))
    if not documents:
        raise UsageError(f"{results} has no results: run ci/example --only {results.name} --again.")
    written = [
        _write(out / f"{name}{ENDING}", _encode(scrub(document, known)), path) for name, document, path in documents
    ]
    _remove_others(out, written)
    return written


def pack_nights(results: Path, out: Path, names: Names) -> list[Path]:
    """Pack the nights of a folder: its database and its references, in place of the files that were there."""
    source = results / DATABASE
    rows = [(name, _encode(scrub(prune_night(report), names)).decode()) for name, report in sessions(source) if report]
    with closing(sqlite3.connect(":memory:")) as made:
        made.execute("CREATE TABLE sessions (uuid TEXT PRIMARY KEY, json_blob TEXT)")
        made.executemany("INSERT INTO sessions VALUES (?, ?)", rows)
        made.commit()
        written = [_write(out / NIGHTS, made.serialize(), source)]
    written += [_pack_references(path, out, names) for path in sorted((results / REFERENCES).glob("*.yaml"))]
    _remove_others(out, written)
    return written


def _pack_references(path: Path, out: Path, names: Names) -> Path:
    """Pack a file of references without the versions of its jobs, which the nights tell."""
    read = yaml_text.read(path)
    series = tuple(ReferenceSet.model_validate(scrub(one | {"versions": {}}, names)) for one in read["series"])
    known = References.model_validate(read | {"series": series, "digest": digest(series)})
    return write(out / path.name, NOTICE.format(name=known.system), known.model_dump(mode="json", by_alias=True))


def _remove_others(out: Path, written: Sequence[Path]) -> None:
    for old in {*out.iterdir()} - {*written}:
        old.unlink()


def _encode(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def _write(path: Path, content: bytes, source: Path) -> Path:
    """Write compressed bytes, whose header has the time at which their source was written."""
    files.write_bytes(path, gzip.compress(content, LEVEL, mtime=int(source.stat().st_mtime)))
    return path


def prune_night(report: Any) -> dict[str, Any]:
    """Return a session of a night with what the nights read of it."""
    pruned = prune([report])
    pruned["session_info"] |= {key: report["session_info"][key] for key in OF_A_NIGHT if key in report["session_info"]}
    cases = [case for session in report["runs"] for case in session["testcases"]]
    kept = [case for session in pruned["runs"] for case in session["testcases"]]
    for case, small in zip(cases, kept, strict=True):
        small |= {key: case[key] for key in CASE_OF_A_NIGHT if case.get(key)}
        record = small.get(RECORD, {})
        small[RECORD] = {"schema": OTHER_SCHEMA} | {key: record[key] for key in RECORD_OF_A_NIGHT if record.get(key)}
    return pruned


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
