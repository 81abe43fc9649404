"""References of a system, made of the jobs in its results database.

Every night counts the same, however many jobs of a test it has: what looks worse is run again in the same night, and
would else count more often than what doesn't.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate

from engine.errors import UsageError
from engine.result import provenance
from reports.nights.judge import collect_figures
from reports.read.history import NODES, History
from systems import references
from systems.references import FEWEST_JOBS, Key, Reference, References, ReferenceSet


def make(history: History, before: References | None = None) -> dict[Key, ReferenceSet]:
    """Write the system's file; returns what is new in it. References of tests and of measured figures that have too few
    jobs now stay.

    Raises UsageError where nothing has enough, OSError where it can't be written.
    """
    older = before.by_key() if before else {}
    new = make_series(history, older)
    if not new:
        most = max((sum(map(len, figure.values)) for figure in collect_figures(history.nights)), default=0)
        raise UsageError(
            f"No reference can be made for {history.system}: it takes {FEWEST_JOBS} jobs of the same test, and the "
            f"most are {most}. Run ci/nightly --system {history.system} on more nights, or name another --database."
        )
    commit, _ = provenance.git_state(provenance.CHECKOUT)
    references.keep(history.system, provenance.now(), commit, {**older, **new}.values())
    return new


def make_series(history: History, older: Mapping[Key, ReferenceSet]) -> dict[Key, ReferenceSet]:
    """Make the references of every figure that enough jobs have."""
    new = defaultdict[Key, dict[str, Reference]](dict)
    for figure in collect_figures(history.nights):
        if sum(map(len, figure.values)) >= FEWEST_JOBS:
            new[figure.key][figure.figure] = reference_of(figure.unit, figure.values)
    return {key: _series(key, figures, history, older.get(key)) for key, figures in new.items()}


def _series(key: Key, new: Mapping[str, Reference], history: History, before: ReferenceSet | None) -> ReferenceSet:
    """Record the nights, versions, commits and devices that the references of a test are of."""
    began = sorted(night.began.isoformat(timespec="seconds") for night in history.nights if night.measured(key))
    jobs = [job for job in history.jobs if job.key == key and job.figures]
    measured = {name for job in jobs for name in job.figures}
    old = {name: reference for name, reference in before.figures.items() if name in measured} if before else {}
    names = sorted({name for job in jobs for name in job.state})
    states = {name: tuple(dict.fromkeys(job.state[name] for job in jobs if name in job.state)) for name in names}
    commits, devices, _ = (states.pop(name, ()) for name in ("commit", "device", NODES))
    return ReferenceSet(
        **key._asdict(),
        nights=len(began),
        first=began[0],
        last=began[-1],
        commits=commits,
        devices=devices,
        versions=states,
        figures=old | dict(new),
    )


def reference_of(unit: str, nights: Sequence[Sequence[float]]) -> Reference:
    """Return the median (of two values the lower one) and MAD of the jobs' values, each night counting the same."""
    weighed = [(value, Fraction(1, len(night))) for night in nights for value in night]

    def middle(values: Iterable[tuple[float, Fraction]]) -> float:
        ordered = sorted(values)
        below = list(accumulate(weight for _, weight in ordered))
        return float(f"{ordered[bisect_left(below, Fraction(len(nights), 2))][0]:.6g}")

    usual = middle(weighed)
    mad = middle((abs(value - usual), weight) for value, weight in weighed)
    return Reference(unit=unit, median=usual, mad=mad, jobs=len(weighed), nights=len(nights))
