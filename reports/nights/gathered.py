"""The nights of every system are gathered from all results databases, each night once."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from reports.nights.history import History, Night, NightJob, history, systems_in


def histories(database: Path) -> list[History]:
    """Read the history of each system that has nights there. Raises ResultError."""
    return [found for system in systems_in(database) if (found := history(database, system)).nights]


def joined(several: Iterable[History]) -> list[History]:
    """Join the histories of all databases to one of each system, in alphabetical order."""
    by_system: dict[str, list[History]] = {}
    for one in several:
        by_system.setdefault(one.system, []).append(one)
    return [_one(system, found) for system, found in sorted(by_system.items())]


def _one(system: str, several: Sequence[History]) -> History:
    remarks = dict.fromkeys(remark for one in several for remark in one.remarks)
    return several[0] if len(several) == 1 else History(system, _nights(several), tuple(remarks))


def _nights(several: Sequence[History]) -> tuple[Night, ...]:
    """Put all nights in the order in which they began. A session that an earlier database holds too, as a copy does,
    counts once: sessions are the same if they began at the same time.
    """
    jobs: dict[str, list[NightJob]] = {}
    chosen: dict[str, dict[tuple[str, str], None]] = {}
    nightly = {night.name for one in several for night in one.nights if night.nightly}
    known: set[datetime] = set()
    for one in several:
        for night in one.nights:
            chosen.setdefault(night.name, {}).update(dict.fromkeys(night.chosen))
        new = [job for job in one.jobs if job.began not in known]
        known.update(job.began for job in new)
        for job in new:
            jobs.setdefault(job.night, []).append(job)
    nights = [
        Night(name, min(job.began for job in found), tuple(found), tuple(chosen[name]), name in nightly)
        for name, found in jobs.items()
    ]
    return tuple(sorted(nights, key=lambda night: night.began))
