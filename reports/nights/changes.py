"""A figure's history may change its level in a night, in which something of the machine may have changed too.

The nights are those of least squares with a penalty for each (Killick, Fearnhead and Eckley 2012), found by ruptures,
on values whose outliers were drawn in, so that a job that is off by itself makes no level.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from reports.nights import evidence
from reports.nights.evidence import Floats
from reports.nights.history import NODES

SHORTEST_LEVEL = 3
"""A level lasts at least this many nights."""
DRAWN_IN = 3.0
AROUND = 15
"""The size of a change is computed from this many nights on either side: over more, a drift would look like one."""
PENALTY = 4.0
"""A change of level costs this many scales squared times the logarithm of the number of nights: twice the penalty of
the Schwarz criterion, as noise is neither normal nor independent."""


@dataclass(frozen=True, slots=True)
class Change:
    """A figure has another level from a night on, whose position is at; change is that of the level, as a fraction."""

    at: int
    change: float


def changes(values: Sequence[float]) -> list[Change]:
    """Find the nights, oldest first, with which another level begins that differs by LEAST or more."""
    if len(values) < 2 * SHORTEST_LEVEL:
        return []
    import ruptures  # half of what loading the report takes, and most have no such history

    logs = np.log(np.asarray(values, dtype=np.float64))
    scale = _scale(logs)
    tame = _drawn_in(logs, scale)
    search = ruptures.KernelCPD(kernel="linear", min_size=SHORTEST_LEVEL).fit((tame / scale).reshape(-1, 1))
    ends = search.predict(pen=PENALTY * math.log(len(logs)))
    found = list[Change]()
    for before, start, end in zip([0, *ends], ends[:-1], ends[1:], strict=False):
        old, new = logs[max(before, start - AROUND) : start], logs[start : min(end, start + AROUND)]
        change = math.expm1(evidence.median(new) - evidence.median(old))
        if abs(change) >= evidence.LEAST:
            found.append(Change(start, change))
    return found


def _scale(logs: Floats) -> float:
    """The noise is that from night to night, which a change of level hardly touches."""
    steps = np.diff(logs)
    return max(evidence.SCALE_OF_MAD * float(np.median(np.abs(steps))) / math.sqrt(2), evidence.LEAST_SCALE)


def _drawn_in(logs: Floats, scale: float) -> Floats:
    """Put what lies far from the median of the nights around it at the distance that still counts."""
    reach = SHORTEST_LEVEL
    padded = np.pad(logs, reach, mode="edge")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * reach + 1), axis=1)
    return np.clip(logs, around - DRAWN_IN * scale, around + DRAWN_IN * scale)


def what_changed(before: Sequence[Mapping[str, str]], since: Sequence[Mapping[str, str]]) -> list[str]:
    """Say how the state of jobs differs from that of jobs before: torch 2.9 -> 2.10. What had varied before is no
    change. Of nodes, which a queue draws anew every night, only those count that all jobs since then have had.
    """
    words = []
    nodes = [{*state.get(NODES, "").split(", ")} for state in since]
    known = {node for state in before for node in state.get(NODES, "").split(", ")}
    if before and since and (ours := sorted(set[str].intersection(*nodes) - known - {""})):
        words.append(f"{NODES}: {', '.join(ours)} {'was' if len(ours) == 1 else 'were'} not among them before")
    for name in dict.fromkeys(name for state in [*before, *since] for name in state if name != NODES):
        old = {state.get(name, "") for state in before}
        new = {state.get(name, "") for state in since}
        if old and new and not old & new:
            words.append(f"{name} {' or '.join(sorted(old)) or 'unset'} -> {' or '.join(sorted(new)) or 'unset'}")
    return words
