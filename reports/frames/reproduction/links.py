"""Broadcasts between ranks that claims are judged by: between adjacent ones by a system's file, others, and all."""

from collections.abc import Callable
from statistics import median

import systems
from engine.published import machine_name
from reports.frames.reproduction.samples import Asked, Sample, divided, lead_of, over_jobs
from reports.frames.reproduction.tensor_modes import PAIRED, PAIRED_HERE, alike

ADJACENT, OTHERS = "adjacent GPUs", "other GPUs"
NOT_ADJACENT = "GPUs that are not adjacent"
"""Place of a comparison of two machines, of which the other one has adjacent GPUs; else it is of all ranks."""
Which = Callable[[tuple[int, ...]], bool]


def of_sort(asked: Asked) -> Sample | None:
    """Return the median rate between two ranks of a number's sort, on the paper's machine."""
    if not asked.home:
        return None
    return _rate(asked, asked.machine, _pairs(asked.machine, adjacent=asked.number.what == ADJACENT), asked.number.what)


def order(asked: Asked) -> Sample | None:
    """Return by how much the ranks, or the machine, are faster that are said to be."""
    comparison = asked.target.comparison
    if comparison is None or not alike(asked):
        return None
    if comparison.ahead == ADJACENT:
        sorts = {sort: _pairs(asked.machine, adjacent=sort == ADJACENT) for sort in (ADJACENT, OTHERS)}
        ahead, behind = (
            _rate(asked, asked.machine, sorts[name], name) for name in (comparison.ahead, comparison.behind)
        )
    else:
        paired = machine_name(PAIRED) if asked.home else asked.machine + PAIRED_HERE
        which = _pairs(paired, adjacent=False) if comparison.at == NOT_ADJACENT else None
        ahead, behind = (_rate(asked, machine, which, comparison.at) for machine in (asked.machine, paired))
    return lead_of(divided(ahead, behind, f"{ahead.of}, over {behind.of}")) if ahead and behind else None


def _pairs(machine: str, *, adjacent: bool) -> Which:
    """Return what tells whether ranks are two of that sort, by the file of a machine; none are where it has no file."""
    known = systems.load(machine) if machine in systems.names() else None
    return lambda ranks: known is not None and len(ranks) == 2 and known.adjacent(ranks) == adjacent


def _rate(asked: Asked, machine: str, which: Which | None, named: str) -> Sample | None:
    """Return the median rate of the broadcasts that are meant, by job; without a sort, that among all ranks."""
    table = asked.evidence.frames.broadcasts
    values = []
    for row in asked.evidence.rows(machine, "collectives"):
        mine = table[table["run"] == row["run"]]
        groups = [tuple(map(int, ranks.split())) for ranks in mine["ranks"]]
        most = max(map(len, groups), default=0)
        rates = [
            rate
            for ranks, rate in zip(groups, mine["broadcast_bytes_per_s"], strict=True)
            if (which(ranks) if which else len(ranks) == most)
        ]
        values += [median(rates)] if rates else []
    return over_jobs(values, f"{named} of {machine}")
