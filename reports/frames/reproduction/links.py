"""Broadcasts between ranks that claims are judged by: between adjacent ones by a system's file, others, and all."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from statistics import median

import systems
from engine.published import machine_name
from reports.frames.reproduction.samples import Asked, Sample, divided, lead_of, over_jobs
from reports.frames.reproduction.tensor_modes import PAIRED, PAIRED_HERE, alike

ADJACENT, OTHERS = "adjacent GPUs", "other GPUs"
NOT_ADJACENT = "GPUs that are not adjacent"
"""Place of a comparison of two machines, of which the other one has adjacent GPUs; else it is of all ranks."""
PRINTED_BYTES = 125e6
"""Message of the paper, of which its machines' jobs have to be."""
Which = Callable[[tuple[int, ...]], bool]
Setting = tuple[float, float]
"""Ranks, and bytes of the message."""


def of_sort(asked: Asked) -> Sample | None:
    """Return the median rate between two ranks of a number's sort, on the paper's machine."""
    which = _pairs(asked.machine, adjacent=asked.number.what == ADJACENT)
    jobs = _first(_rates(asked, asked.machine, which)) if asked.home else []
    return over_jobs(jobs, f"{asked.number.what} of {asked.machine}")


def order(asked: Asked) -> Sample | None:
    """Return by how much the ranks, or the machine, are faster that are said to be."""
    comparison = asked.target.comparison
    if comparison is None or not alike(asked):
        return None
    if comparison.ahead == ADJACENT:
        ahead, behind = (
            _first(_rates(asked, asked.machine, _pairs(asked.machine, adjacent=name == ADJACENT)))
            for name in (comparison.ahead, comparison.behind)
        )
        ratios = [one / other for one, other in zip(ahead, behind, strict=True)] if len(ahead) == len(behind) else []
        found = over_jobs(ratios, f"{ADJACENT} of {asked.machine}")
        return lead_of(found) if found else None
    paired = machine_name(PAIRED) if asked.home else asked.machine + PAIRED_HERE
    which = _pairs(paired, adjacent=False) if comparison.at == NOT_ADJACENT else None
    own, other = (_rates(asked, machine, which) for machine in (asked.machine, paired))
    for setting in sorted(set(own) & set(other), reverse=True):
        of, over = over_jobs(own[setting], asked.machine), over_jobs(other[setting], paired)
        if of and over:
            return lead_of(divided(of, over, f"{comparison.at} of {of.of}, over those of {over.of}"))
    return None


def _pairs(machine: str, *, adjacent: bool) -> Which:
    """Return what tells whether ranks are two of that sort, by the file of a machine; none are where it has no file."""
    known = systems.load(machine) if machine in systems.names() else None
    return lambda ranks: known is not None and len(ranks) == 2 and known.adjacent(ranks) == adjacent


def _first(rates: Mapping[Setting, list[float]]) -> list[float]:
    """Return the rates of the setting with the most ranks, and of these with the largest message."""
    return rates[max(rates)] if rates else []


def _rates(asked: Asked, machine: str, which: Which | None) -> dict[Setting, list[float]]:
    """Return the median rate of the broadcasts that are meant, by job and setting; without a sort, that among all."""
    table = asked.evidence.frames.broadcasts
    found = defaultdict[Setting, list[float]](list)
    for row in asked.evidence.rows(machine, "collectives"):
        mine = table[table["run"] == row["run"]]
        groups = [tuple(map(int, ranks.split())) for ranks in mine["ranks"]]
        most = max(map(len, groups), default=0)
        rates = [
            rate
            for ranks, rate in zip(groups, mine["broadcast_bytes_per_s"], strict=True)
            if (which(ranks) if which else len(ranks) == most)
        ]
        size = mine["message_bytes"].max()
        if rates and (not asked.home or math.isclose(size, PRINTED_BYTES, rel_tol=0.01)):
            found[row["ranks"], size].append(median(rates))
    return found
