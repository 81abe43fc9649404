"""A system's references are made of the jobs that are in its results database.

Every night counts the same, however many jobs of a test it has: what looks worse is run again in the same night, and
would else count more often than what doesn't.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from engine.errors import UsageError
from engine.result import provenance
from reports.nights.detector import Floats
from reports.nights.figures import is_judged
from reports.nights.history import History, NightJob
from systems import references
from systems.files import SystemFileError
from systems.references import FEWEST_JOBS, Key, Reference, ReferenceSet


@dataclass(frozen=True, slots=True)
class Made:
    """The system's file has series of the tests that had enough jobs, with what was there before of figures that have
    too few, and has kept those of other tests that were there before.

    short says how many jobs the tests have that have too few, and no reference from before, and spoilt why nothing of
    what was there before could be kept, "" if it could.
    """

    path: Path
    series: Sequence[ReferenceSet]
    kept: Sequence[ReferenceSet]
    short: dict[Key, int]
    spoilt: str


def made(history: History, fewest: int) -> tuple[list[ReferenceSet], dict[Key, int]]:
    """Make the series of every test with a figure that so many jobs have, and count the jobs of the other tests."""
    by_key: dict[Key, list[NightJob]] = defaultdict(list)
    for job in history.jobs:
        if job.figures:
            by_key[job.key].append(job)
    series, short = list[ReferenceSet](), dict[Key, int]()
    for key, jobs in by_key.items():
        if usual := _figures(jobs, fewest):
            series.append(_series(key, jobs, usual))
        elif any(
            is_judged(name, unit, frozenset(job.figures)) for job in jobs for name, (_, unit) in job.figures.items()
        ):
            short[key] = len(jobs)
    return series, short


def make(history: History, fewest: int = FEWEST_JOBS) -> Made:
    """Write the system's file. What it held of tests that have too few jobs now stays. Raises UsageError where nothing
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
    new = {one.key for one in series}
    known, spoilt = None, ""
    try:
        known = references.references(history.system)
    except SystemFileError as error:
        spoilt = str(error)
    kept = [one for one in (known.series if known else ()) if one.key not in new]
    if known:
        series = _with_older(series, known.by_key(), history)
    path = references.keep(history.system, provenance.now(), commit, [*kept, *series])
    of_kept = {one.key for one in kept}
    return Made(path, series, kept, {key: jobs for key, jobs in short.items() if key not in of_kept}, spoilt)


def _with_older(
    series: Iterable[ReferenceSet], older: Mapping[Key, ReferenceSet], history: History
) -> list[ReferenceSet]:
    """Keep the older reference of a figure that is still measured, but by too few jobs for a new one."""
    measured = {(job.key, name) for job in history.jobs for name in job.figures}
    found = []
    for one in series:
        before = older[one.key].figures if one.key in older else {}
        left = {name: of for name, of in before.items() if (one.key, name) in measured}
        found.append(one.model_copy(update={"figures": left | dict(one.figures)}))
    return found


def _figures(jobs: list[NightJob], fewest: int) -> dict[str, Reference]:
    by_night: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for job in jobs:
        for name, (value, unit) in job.figures.items():
            if is_judged(name, unit, frozenset(job.figures)):
                by_night[name, unit][job.night].append(value)
    return {
        name: reference_of(unit, list(nights.values()))
        for (name, unit), nights in sorted(by_night.items())
        if sum(map(len, nights.values())) >= fewest
    }


def reference_of(unit: str, nights: Sequence[Sequence[float]]) -> Reference:
    values = np.concatenate([np.array(night) for night in nights])
    weights = np.concatenate([np.full(len(night), 1 / len(night)) for night in nights])
    middle = weighted_median(values, weights)
    mad = weighted_median(np.abs(values - middle), weights)
    return Reference(unit=unit, median=_short(middle), mad=_short(mad), jobs=len(values), nights=len(nights))


def weighted_median(values: Floats, weights: Floats) -> float:
    """The value has half of the weight on either side; between two of them it is their mean."""
    order = np.argsort(values, kind="stable")
    ordered, summed = values[order], np.cumsum(weights[order])
    at = int(np.searchsorted(summed, summed[-1] / 2 * (1 - 1e-12)))
    after = min(at + 1, len(ordered) - 1)
    between = math.isclose(summed[at], summed[-1] / 2)
    return float((ordered[at] + ordered[after]) / 2 if between else ordered[at])


def _series(key: Key, jobs: list[NightJob], usual: dict[str, Reference]) -> ReferenceSet:
    versions: dict[str, list[str]] = defaultdict(list)
    for job in jobs:
        for name, value in job.state.items():
            if name not in ("commit", "nodes", "device"):
                versions[name].append(value)
    return ReferenceSet(
        **key._asdict(),
        nights=len({job.night for job in jobs}),
        first=min(job.began for job in jobs).isoformat(timespec="seconds"),
        last=max(job.began for job in jobs).isoformat(timespec="seconds"),
        versions={name: _each_once(of) for name, of in sorted(versions.items())},
        commits=_each_once(job.state["commit"] for job in jobs if "commit" in job.state),
        devices=_each_once(device for job in jobs for device in job.devices),
        figures=usual,
    )


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _each_once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))
