"""History of a system's nights, from ReFrame's results database: jobs, their figures and the machine's state.

The database is ReFrame's and is opened read-only (run_reports.py). A night is what one run of ci/nightly has started;
of sessions that it didn't start, those of one day. Only jobs whose result was good carry figures: one that failed only
its references is among them, as references without the slow jobs would be wrong.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pydantic import BaseModel, ValidationError

from engine.result.schema import Provenance, Summary
from engine.result.schema.machine import Transport
from engine.result.schema.step import Breakdown, Collective
from engine.schema import first_problem
from reports import text
from reports.read.run_reports import AFTER_SANITY, RECORD, Session, failure, sessions
from systems.references import Key, key_of, name_of

DATABASE = Path("results/reframe/results.db")
"""ReFrame's database, below the folder that it runs in."""
NODES = "nodes"
"""Name of the nodes in a job's state, as "n0, n1"."""
STARTING_S = 30.0
"""Time that a launcher may take to start the ranks of a job."""
NIGHT, CHOSEN = "par4d_night", "par4d_chosen"
"""Keys that ci/nightly adds to its sessions: the night's name, and the tests to run (write_tests)."""
SKIPPED = "it was skipped"
"""Reason of a test that its partition can't run, or that misses something else there."""
OF_A_JOB = ("SLURM_JOB_", "SLURM_STEP_", "LSB_JOBID", "PBS_JOBID", "FLUX_JOB_ID")
"""Beginnings of names of environment variables that differ in every job."""


@dataclass(frozen=True, slots=True)
class NightJob:
    """One job of a night: a test case that ran."""

    key: Key
    failed: bool
    """Whether more failed than its references."""
    reason: str
    """Why it has no result; "" where it has one, or was a dry run."""
    figures: Mapping[str, tuple[float, str]]
    """Value and unit by name; none without a result."""
    state: Mapping[str, str]
    """State that can change from night to night, in words, by name."""
    parts: Mapping[tuple[str, str], float]
    """Numbers that tell which part of a step got slower, by (what, which), in seconds, bytes/s, flop/s or Hz."""
    node_seconds: float


@dataclass(frozen=True, slots=True)
class Night:
    """One night and its jobs."""

    name: str
    began: datetime
    jobs: list[NightJob]
    """In the order in which they were stored."""
    chosen: dict[tuple[str, str], None]
    """Tests that ci/nightly had to run, by name and point, in their order; none in a night of jobs started by hand."""

    def measured(self, key: Key) -> list[NightJob]:
        """Return the jobs of a key that have figures."""
        return [job for job in self.jobs if job.key == key and job.figures]


@dataclass(frozen=True, slots=True)
class History:
    """Nights of a system."""

    system: str
    nights: tuple[Night, ...]
    """In the order in which they were stored."""
    remarks: tuple[str, ...] = ()
    """Oddities of the database, in sentences."""

    @property
    def jobs(self) -> Iterator[NightJob]:
        return (job for night in self.nights for job in night.jobs)

    def find(self, name: str) -> Night | None:
        return next((night for night in self.nights if night.name == name), None)

    @property
    def nightly(self) -> bool:
        """Whether ci/nightly has run: jobs started by hand alone are no nights."""
        return any(night.chosen for night in self.nights)


class NightResult(BaseModel):
    """Parts of a result, or of a contest with peers, that a night reads."""

    provenance: Provenance
    summary: Summary | None = None
    breakdown: Breakdown | None = None
    collectives: tuple[Collective, ...] = ()
    transport: Transport | None = None


def write_tests(tests: Iterable[str]) -> str:
    """Write the names of tests as ReFrame displays them, without a comma, which would end what ReFrame is given."""
    return " ".join(quote(name, safe="") for name in tests)


def history(database: Path, system: str) -> History:
    """Read a system's nights; there are none without a file.

    Raises ResultError for a file that can't be read as a database of this ReFrame's.
    """
    if not database.exists():
        return History(system, (), (f"There is no database of results at {database}.",))
    return next(each for each in histories([sessions(database)], system) if each.system == system)


def histories(databases: Sequence[Iterable[Session]], *systems: str) -> list[History]:
    """Read the history of each system that has nights in these databases, and of these systems, in alphabetical order.

    Nights of several databases are in the order in which they began, and a session that two of them have counts once.
    """
    stored, broken = dict(chain.from_iterable(databases)), 0
    nights = defaultdict[str, dict[str, Night]](dict, {system: {} for system in systems})
    for report in stored.values():
        try:
            info = (report or {})["session_info"]
            began = datetime.fromtimestamp(info["time_start_unix"], UTC)
            name = str(info.get(NIGHT) or f"{began:%Y-%m-%d}")
            chosen = [name_of(unquote(word)) for word in str(info.get(CHOSEN) or "").split()]
            cases = chain.from_iterable(run.get("testcases") or () for run in (report or {})["runs"])
            jobs = [(str(case["system"]), _job(case)) for case in cases if RECORD in case and case.get("system")]
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError, OSError, IndexError):
            broken += 1
            continue
        for system, job in jobs:
            night = nights[system].setdefault(name, Night(name, began, [], {}))
            night.jobs.append(job)
            night.chosen.update(dict.fromkeys(chosen))
    remarks = (f"{text.plural(broken, 'session')} can't be read and left out.",) if broken else ()
    read = []
    for system, by_name in sorted(nights.items()):
        kept = list(by_name.values())
        if len(databases) > 1:
            kept.sort(key=lambda night: night.began)
        read.append(History(system, tuple(kept), remarks))
    return read


def _job(case: Mapping[str, Any]) -> NightJob:
    outcome, (failed_as, stage) = str(case.get("result")), failure(case)
    good = outcome == "pass" or (failed_as is not None and stage in AFTER_SANITY)
    known = {"fail": failed_as, "skip": SKIPPED, "fail_deps": "a test that it needs failed"}
    reason = "" if good else known.get(outcome) or "it was ended before it had a result"
    record, result = case[RECORD] if isinstance(case[RECORD], dict) else {}, None
    values = (case.get("perfvalues") or {}).items() if good and record.get("status") == "ok" else ()
    if record:
        try:
            result = NightResult.model_validate(record)
        except ValidationError as error:
            reason = reason or f"of its result only the figures can be read: {first_problem(error)}"
    return NightJob(
        key=key_of(
            partition=str(case.get("partition") or ""),
            display_name=str(case.get("display_name") or case.get("name") or ""),
            ranks=case.get("num_tasks") or 0,
            words=case.get("executable_opts") or (),
            record=record,
        ),
        failed=not good and outcome == "fail",
        reason=reason,
        figures={name.rpartition(":")[2]: (of[0], of[4]) for name, of in values if of[0] and 0 < of[0] < math.inf},
        state=_state(result) if result else {},
        parts=dict(_parts(result)) if good and result else {},
        node_seconds=(case.get("nodes") or 1) * _occupied_s(case, result),
    )


def _occupied_s(case: Mapping[str, Any], result: NightResult | None) -> float:
    """Return how long a job had its nodes: the result's time and the launcher's, at most what ReFrame counts, which
    includes the queue.
    """
    most = min(max(0.0, case.get("time_run") or 0.0), case.get("time_limit_s") or math.inf)
    if result:
        with suppress(ValueError, TypeError):  # no times, or one with a time zone and one without
            began, ended = map(datetime.fromisoformat, (result.provenance.start, result.provenance.end))
            return min(most, max(0.0, (ended - began).total_seconds()) + STARTING_S)
    return float(most)


def _state(result: NightResult) -> dict[str, str]:
    """Return what an update of a machine may change, and nothing of a job's own numbers."""
    origin, network = result.provenance, result.transport
    environment = {name: value for name, value in origin.environment.items() if not name.startswith(OF_A_JOB)}
    commit = f"{(origin.git_commit or '')[:12]}{', modified' if origin.git_dirty else ''}"
    state = {"commit": commit, **origin.versions, **environment, NODES: ", ".join(origin.hosts)}
    state |= {"device": ", ".join(origin.devices), "modules": ", ".join(origin.modules)}
    if network:
        state["network library"] = network.library or network.backend
        state["network"] = ", ".join(sorted({str(each.name) for each in network.networks}))
    return {name: value for name, value in state.items() if value}


def _parts(result: NightResult) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield NightJob.parts as far as the result has them."""
    if result.breakdown:
        yield ("compute", ""), result.breakdown.compute_s
        yield from ((("exposed", axis.axis), axis.exposed_s) for axis in result.breakdown.axes)
        yield from ((("host", host.host), host.compute_s) for host in result.breakdown.hosts)
    if result.summary and result.summary.empirical_peak_measured:
        yield ("peak", ""), result.summary.empirical_peak_flops_per_device or 0.0
    if clocks_hz := result.provenance.clocks_hz.values():
        yield ("clock", ""), min(clocks_hz)
    for axis in {collective.axis for collective in result.collectives}:
        along = [collective for collective in result.collectives if collective.axis == axis]
        if time_s := sum(collective.time_s or 0.0 for collective in along):
            yield ("rate", axis), sum(collective.bytes for collective in along) / time_s
