"""ReFrame's results database tells of a system's nights: its jobs, what they measured and how the machine was.

The database is ReFrame's and is opened read-only. A night is what one run of ci/nightly has started; of sessions that
it didn't start, those of one day. Only jobs whose result was good carry figures: one that failed only its references is
among them, as references without the slow jobs would be wrong. Format: as run_reports.py says.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from reports.run_reports import AFTER_SANITY, RECORD, Session, failure, sessions
from systems.references import Key, key_of, name_of

DATABASE = Path("results/reframe/results.db")
"""ReFrame keeps its database here, below the folder that it runs in."""
NODES = "nodes"
"""A job's state has its nodes under this name, as "n0, n1"."""
STARTING_S = 30.0
"""A launcher may take this long to start the ranks of a job."""
NIGHT = "par4d_night"
"""ci/nightly adds the night's name to the information of its sessions under this key."""
CHOSEN = "par4d_chosen"
"""ci/nightly adds the tests that the session has to run under this key, as said() writes them."""


@dataclass(frozen=True, slots=True)
class NightJob:
    """A job of a night ran a test case, which has failed if more did than its references.

    reason says why it has no result; it is "" where it has one, or was a dry run. figures are (value, unit) by name,
    none without a result. state is what can change from night to night, in words, by name. parts are numbers that tell
    what of a step got slower, by (what, which), in seconds, bytes/s, flop/s or Hz.
    """

    key: Key
    night: str
    began: datetime
    failed: bool
    reason: str
    figures: Mapping[str, tuple[float, str]]
    state: Mapping[str, str]
    parts: Mapping[tuple[str, str], float]
    devices: tuple[str, ...]
    node_seconds: float


@dataclass(frozen=True, slots=True)
class Night:
    """A night has jobs, in the order in which they were stored. It is nightly if ci/nightly has started one of its
    sessions; chosen are the tests that it had to run then, by name and point.
    """

    name: str
    began: datetime
    jobs: tuple[NightJob, ...]
    chosen: tuple[tuple[str, str], ...] = ()
    nightly: bool = False


@dataclass(frozen=True, slots=True)
class History:
    """A system has nights, in the order in which they were stored, and remarks say what is odd about the database.

    held_s are the node-seconds of every good job by the unique name of its test, also of what only prepares for others.
    """

    system: str
    nights: tuple[Night, ...]
    remarks: tuple[str, ...] = ()
    held_s: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def jobs(self) -> Iterator[NightJob]:
        return (job for night in self.nights for job in night.jobs)

    @property
    def nightly(self) -> bool:
        """What people start by hand alone is no night to speak of: ci/nightly has to have run."""
        return any(night.nightly for night in self.nights)

    def until(self, name: str) -> "History":
        names = [night.name for night in self.nights]
        return replace(self, nights=self.nights[: names.index(name) + 1])


def said(tests: Iterable[str]) -> str:
    """Write the names of tests as ReFrame displays them without a comma, which would end what ReFrame is given."""
    return " ".join(quote(name, safe="") for name in tests)


def systems_in(stored: Iterable[Session]) -> set[str]:
    found = {case.get("system") for _, report in stored if report for case in _cases(report)}
    return {name for name in found if isinstance(name, str) and name}


def histories(databases: Mapping[Path, Sequence[Session]]) -> list[History]:
    """Read the history of each system that has nights in these databases, in alphabetical order.

    Nights of several are in the order in which they began. A session that an earlier database holds too, as a copy
    does, counts once: sessions are the same if they began at the same time.
    """
    systems = {path: systems_in(stored) for path, stored in databases.items()}
    every = (
        _history(name, {path: stored for path, stored in databases.items() if name in systems[path]})
        for name in sorted(set().union(*systems.values()))
    )
    return [found for found in every if found.nights]


def history(database: Path, system: str, *, since: datetime | None = None) -> History:
    """Read a system's nights, none where there is no such file, without what began before `since`.

    Raises ResultError for a file that can't be read as a database of this ReFrame's.
    """
    if not database.exists():
        return History(system, (), (f"There is no database of results at {database}.",))
    return _history(system, {database: sessions(database)}, since)


def _history(system: str, databases: Mapping[Path, Iterable[Session]], since: datetime | None = None) -> History:
    remarks: list[str] = []
    jobs: dict[str, list[NightJob]] = {}
    chosen: dict[str, dict[tuple[str, str], None]] = {}
    held_s: dict[str, list[float]] = {}
    nightly, known = set[str](), set[datetime]()
    for database, stored in databases.items():
        broken, ends, met = 0, list[float](), set[datetime]()
        for _, report in stored:
            info = _dict(report["session_info"]) if report else {}
            began = _moment(info.get("time_start_unix"))
            if report is None or began is None:
                broken += 1
                continue
            own = [case for case in _cases(report) if case.get("system") == system]
            if not own or (since and began < since):
                continue
            ends.append(_number(info.get("time_end_unix")))
            met.add(began)
            night = str(info.get(NIGHT) or f"{began:%Y-%m-%d}")
            if info.get(NIGHT):
                nightly.add(night)
            words = str(info.get(CHOSEN) or "").split()
            chosen.setdefault(night, {}).update(dict.fromkeys(name_of(unquote(word)) for word in words))
            for case in own if began not in known else ():
                if RECORD in case:
                    jobs.setdefault(night, []).append(_job(case, night, began))
                if case.get("result") == "pass":
                    held_s.setdefault(str(case.get("unique_name")), []).append(_node_seconds(case))
        known |= met
        if broken:
            remarks.append(f"{broken} session{'s' * (broken > 1)} of {database} can't be read and were left out.")
        if back := sum(later < earlier for earlier, later in pairwise(ends)):
            remarks.append(
                f"The clock ran backwards before {back} session{'s' * (back > 1)} of {database}: nights are taken in "
                "the order in which they were stored."
            )
    nights = [
        Night(name, min(job.began for job in of), tuple(of), tuple(chosen[name]), name in nightly)
        for name, of in jobs.items()
    ]
    if len(databases) > 1:
        nights.sort(key=lambda night: night.began)
    return History(system, tuple(nights), tuple(remarks), held_s)


def _cases(report: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for run in report["runs"]:
        cases = run.get("testcases") if isinstance(run, dict) else None
        yield from (case for case in (cases if isinstance(cases, list) else ()) if isinstance(case, dict))


def _moment(seconds: object) -> datetime | None:
    try:
        return datetime.fromtimestamp(float(seconds), UTC)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def _job(case: Mapping[str, Any], night: str, began: datetime) -> NightJob:
    record = _dict(case.get(RECORD))
    reason, stage = failure(case)
    good = case.get("result") == "pass" or (reason is not None and stage in AFTER_SANITY)
    origin = _dict(record.get("provenance"))
    return NightJob(
        key=key_of(
            partition=str(case.get("partition") or ""),
            display_name=str(case.get("display_name") or case.get("name") or ""),
            ranks=int(_number(case.get("num_tasks"))),
            words=[str(word) for word in _list(case.get("executable_opts"))],
            record=record,
        ),
        night=night,
        began=began,
        failed=not good and case.get("result") == "fail",
        reason="" if good else (reason or "no reason given") if case.get("result") == "fail" else _unended(case),
        figures=dict(_figures(case)) if good and record.get("status") == "ok" else {},
        state=dict(_state(origin, record)),
        parts=dict(_parts(origin, record)) if good else {},
        devices=tuple(map(str, _list(origin.get("devices")))),
        node_seconds=_node_seconds(case),
    )


def _unended(case: Mapping[str, Any]) -> str:
    known = {"skip": "it was skipped", "fail_deps": "a test that it needs failed"}
    return known.get(str(case.get("result")), "it was ended before it had a result")


def _node_seconds(case: Mapping[str, Any]) -> float:
    return _number(case.get("nodes") or 1) * _held_s(case)


def _held_s(case: Mapping[str, Any]) -> float:
    """A job has held its nodes at most for what ReFrame counts, in which the time in the queue is, and at least for
    what the result tells, which begins with its first rank.
    """
    origin = _dict(_dict(case.get(RECORD)).get("provenance"))
    most = max(0.0, _number(case.get("time_run")))
    if limit_s := _number(case.get("time_limit_s")):
        most = min(most, limit_s)
    try:
        began, ended = (datetime.fromisoformat(str(origin[name])) for name in ("start", "end"))
        return min(most, max(0.0, (ended - began).total_seconds()) + STARTING_S)
    except (KeyError, ValueError, TypeError):  # one with a time zone and one without
        return most


def _figures(case: Mapping[str, Any]) -> Iterator[tuple[str, tuple[float, str]]]:
    for name, stored in _dict(case.get("perfvalues")).items():
        if isinstance(stored, list) and len(stored) >= 5 and 0 < (value := _number(stored[0])) < math.inf:
            yield str(name).rpartition(":")[2], (value, str(stored[4]))


def _state(origin: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Say what an update of a machine may change, and nothing of a job's own numbers."""
    if commit := origin.get("git_commit"):
        yield "commit", f"{str(commit)[:12]}{', modified' if origin.get('git_dirty') else ''}"
    for name, version in _dict(origin.get("versions")).items():
        yield str(name), str(version)
    for name, value in _dict(origin.get("environment")).items():
        if not str(name).startswith(("SLURM_JOB_", "SLURM_STEP_", "LSB_JOBID", "PBS_JOBID", "FLUX_JOB_ID")):
            yield str(name), str(value)
    for name, among in ((NODES, "hosts"), ("device", "devices"), ("modules", "modules")):
        if several := _list(origin.get(among)):
            yield name, ", ".join(map(str, several))
    if network := _dict(record.get("transport")):
        yield "network library", str(network.get("library") or network.get("backend"))
        names = {str(_dict(one).get("name")) for one in _list(network.get("networks"))}
        yield "network", ", ".join(sorted(names))


def _parts(origin: Mapping[str, Any], record: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], float]]:
    """Give NightJob.parts as far as the result has them."""
    if breakdown := _dict(record.get("breakdown")):
        yield ("compute", ""), _number(breakdown.get("compute_s"))
        for one in map(_dict, _list(breakdown.get("axes"))):
            yield ("exposed", str(one.get("axis"))), _number(one.get("exposed_s"))
        for one in map(_dict, _list(breakdown.get("hosts"))):
            yield ("host", str(one.get("host"))), _number(one.get("compute_s"))
    summary = _dict(record.get("summary"))
    if summary.get("empirical_peak_measured"):
        yield ("peak", ""), _number(summary.get("empirical_peak_flops_per_device"))
    for host, clock_hz in _dict(origin.get("clocks_hz")).items():
        yield ("clock", str(host)), _number(clock_hz)
    sent: dict[str, tuple[float, float]] = {}
    for one in map(_dict, _list(record.get("collectives"))):
        moved, took_s = sent.get(str(one.get("axis")), (0.0, 0.0))
        sent[str(one.get("axis"))] = moved + _number(one.get("bytes")), took_s + _number(one.get("time_s"))
    for along, (moved, took_s) in sent.items():
        if took_s > 0:
            yield ("rate", along), moved / took_s


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: object) -> float:
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return number if math.isfinite(number) else 0.0
