"""Nights as ReFrame keeps them: its database's schema, its sessions and test cases, with results of sample_results."""

import json
import random
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sample_results import as_record, train

from reports.nights.reference import make
from reports.read.history import history, write_tests
from systems import references

SCHEMA = (
    "CREATE TABLE sessions(uuid TEXT PRIMARY KEY, session_start_unix REAL, session_end_unix REAL, json_blob TEXT, "
    "report_file TEXT)",
    "CREATE TABLE testcases(name TEXT, system TEXT, partition TEXT, environ TEXT, job_completion_time_unix REAL, "
    "session_uuid TEXT, uuid TEXT, FOREIGN KEY(session_uuid) REFERENCES sessions(uuid) ON DELETE CASCADE)",
    "CREATE TABLE metadata(schema_version TEXT)",
)
FIRST = datetime(2026, 9, 1, 2, 0, tzinfo=UTC)
NIGHTS, SLOWER_FROM, SLOWER_BY = 63, 60, 1.08
"""The last night opens an episode."""
STEADY, SLOWED = "Steady %n=512", "Slowed %n=512"
OLD, NEW = {"versions": {"torch": "2.9.0"}}, {"versions": {"torch": "2.10.0"}}


def case(
    name: str,
    figures: Mapping[str, tuple[float, str]],
    record: Mapping[str, Any],
    *,
    system: str = "frontier",
    failure: str = "",
    words: Sequence[str] = ("-m", "engine", "train", "--model", "gpt-5b"),
) -> dict[str, Any]:
    """Make a test case: what it measured, as (value, unit) by name, and its result. failure: why it failed."""
    return {
        "name": name, "display_name": name, "system": system, "partition": "gpu", "environ": "engine",
        "result": "fail" if failure else "pass", "fail_reason": failure or None,
        "fail_phase": "sanity" if failure else None, "record": {} if failure else dict(record),
        "executable_opts": list(words), "nodes": 4, "num_tasks": 512, "time_run": 60.0,
        "job_completion_time_unix": 0.0, "uuid": name,
        "perfvalues": {
            f"{system}:gpu:{figure}": [value, 0, None, None, unit, "pass"] for figure, (value, unit) in figures.items()
        },
    }  # fmt: skip


def session(
    cases: Iterable[Mapping[str, Any]], began: datetime, night: str | None = None, chosen: Sequence[str] = ()
) -> dict[str, Any]:
    """Make what one call of ReFrame stores. night: its name by ci/nightly; None where a person has started it. chosen:
    what it had to run, if that is more than it has run.
    """
    cases = list(cases)
    info = {
        "data_version": "4.2",
        "version": "4.10.4",
        "hostname": "login1",
        "uuid": str(uuid.uuid4()),
        "time_start_unix": began.timestamp(),
        "time_end_unix": began.timestamp() + 600,
    }
    if night is not None:
        info |= {"par4d_night": night, "par4d_chosen": write_tests(chosen or [one["display_name"] for one in cases])}
    return {"session_info": info, "runs": [{"run_index": 0, "testcases": cases}], "restored_cases": []}


def store(path: Path, sessions: Iterable[Mapping[str, Any]]) -> Path:
    """Store these in a results database."""
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    for statement in SCHEMA:
        connection.execute(statement)
    connection.execute("INSERT INTO metadata VALUES('1.0')")
    for one in sessions:
        info = one["session_info"]
        row = (info["uuid"], info["time_start_unix"], info["time_end_unix"], json.dumps(one), None)
        connection.execute("INSERT INTO sessions VALUES(?, ?, ?, ?, ?)", row)
    connection.commit()
    connection.close()
    return path


def night_name(number: int) -> str:
    """Name a night as ci/nightly does."""
    return f"{FIRST + timedelta(days=number):%Y-%m-%dT%H%M%S}"


def timed(seconds: float, number: int, environment: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make the figures and the record of a training by the seconds of a step."""
    record = as_record(train(time_s=seconds, job=number, study="nightly", environment=dict(environment)))
    figures = {"time_per_iteration": (seconds, "s"), "hardware_flops_per_s": (3e17 / seconds, "flop/s")}
    return figures, record


def slowed(
    count: int = NIGHTS,
    *,
    since: int = SLOWER_FROM,
    by: float = SLOWER_BY,
    jobs: int = 1,
    system: str = "frontier",
    names: Sequence[str] = (STEADY, SLOWED),
) -> list[dict[str, Any]]:
    """Make nights of two tests with 0.5 % of noise; the last is slower from a night on, with another torch."""
    noise = random.Random(7)
    made = []
    for number in range(count):
        cases = []
        for _ in range(jobs):
            for name in names:
                factor = by if name == names[-1] and number >= since else 1.0
                seconds = 18.0 * noise.gauss(1.0, 0.005) * factor
                figures, record = timed(seconds, len(names) * number, NEW if number >= since else OLD)
                cases.append(case(name, figures, record, system=system))
        made.append(session(cases, FIRST + timedelta(days=number), night_name(number)))
    return made


def hostile_nights(names: Sequence[str]) -> list[dict[str, Any]]:
    """Make for each name a system of seven nights with a test and a failed one of that name; times beyond any clock."""
    made = []
    for place, name in enumerate(names):
        known = {"versions": {name: name}, "hosts": (name,), "environment": {name: name}, "git_commit": name}
        for number, seconds in enumerate((1.0, 1e308, 1e-320, 2.0, 2.0, 2.0, 2.0)):
            other = {
                key: value if number % 2 else {} for key, value in known.items() if key in ("versions", "environment")
            }
            figures, record = timed(18.0, 100 * place + number, known | other)
            figures = {name: (seconds, "s"), f"{name}2": (seconds, "x"), "rate": (seconds, "flop/s")}
            tests = [
                case(name, figures, record, system=name, words=(name,)),
                case(f"Failed {name}", {}, {}, system=name, failure=name),
            ]
            made.append(session(tests, FIRST + timedelta(days=number), f"{number}{name}"))
    return made


@contextmanager
def referred(database: Path, system: str = "frontier") -> Iterator[Path]:
    """Give the system references of all jobs in the database; yields the database."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(references, "FOLDER", database.parent / "references")
        make(history(database, system))
        yield database
