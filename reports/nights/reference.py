"""Makes a system's references of the jobs that are in its results database."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from engine.errors import UsageError
from engine.result import provenance
from reports.nights.history import History, Job
from systems import references
from systems.references import FEWEST_JOBS, Key, Series, Usual, worse_by


def made(history: History, fewest: int) -> tuple[list[Series], dict[Key, int]]:
    """The series of every test with a figure that so many jobs have; and the jobs of the tests that have fewer."""
    by_key: dict[Key, list[Job]] = defaultdict(list)
    for job in history.jobs:
        if job.figures:
            by_key[job.key].append(job)
    series, short = list[Series](), dict[Key, int]()
    for key, jobs in by_key.items():
        if usual := _figures(jobs, fewest):
            series.append(_series(key, jobs, usual))
        elif any(worse_by(unit) for job in jobs for _, unit in job.figures.values()):
            short[key] = len(jobs)
    return series, short


def make(history: History, fewest: int = FEWEST_JOBS) -> tuple[Path, list[Series], dict[Key, int]]:
    """Write the system's file; returns it with what is in it and what has too few jobs. Raises UsageError where nothing
    has enough, OSError where it can't be written.
    """
    series, short = made(history, fewest)
    if not series:
        most = max(short.values(), default=0)
        raise UsageError(
            f"No reference can be made for {history.system}: it takes {fewest} jobs of the same test, and the most "
            f"are {most}. Run ci/nightly --system {history.system} on more nights, or name another --database."
        )
    commit, _ = provenance.git_state(provenance.CHECKOUT)
    return references.keep(history.system, provenance.now(), commit, series), series, short


def _figures(jobs: list[Job], fewest: int) -> dict[str, Usual]:
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    for job in jobs:
        for name, (value, unit) in job.figures.items():
            values[name, unit].append(value)
    return {
        name: Usual(unit=unit, median=_short(median(of)), mad=_short(_mad(of)), jobs=len(of))
        for (name, unit), of in sorted(values.items())
        if len(of) >= fewest and worse_by(unit)
    }


def _series(key: Key, jobs: list[Job], usual: dict[str, Usual]) -> Series:
    versions: dict[str, list[str]] = defaultdict(list)
    for job in jobs:
        for name, value in job.state.items():
            if name not in ("commit", "nodes", "device"):
                versions[name].append(value)
    return Series(
        **key._asdict(),
        nights=len({job.night for job in jobs}),
        first=min(job.began for job in jobs).isoformat(timespec="seconds"),
        last=max(job.began for job in jobs).isoformat(timespec="seconds"),
        versions={name: _each_once(of) for name, of in sorted(versions.items())},
        commits=_each_once(job.state["commit"] for job in jobs if "commit" in job.state),
        devices=_each_once(device for job in jobs for device in job.devices),
        figures=usual,
    )


def _mad(values: list[float]) -> float:
    middle = median(values)
    return median(abs(value - middle) for value in values)


def _short(value: float) -> float:
    """In six digits."""
    return float(f"{value:.6g}")


def _each_once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
