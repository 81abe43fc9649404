"""What a result tells of where a step's time goes, as columns: the same of a run as of a variant of an ablation."""

import math
from typing import Any

from engine.result.step import Breakdown
from reports.text import clean, number, plural, positive

COLUMNS = (
    *("compute_s", "collectives_s", "blocking_s", "exposed_s", "hidden_s", "share_hidden"),
    *("bound_s", "bound_by", "step_by_bound", "shared"),
)
WITH_BOUND = 3
"""The first version whose results tell a bound; until then hidden_s was another figure."""


def told(breakdown: Breakdown | None, version: int) -> tuple[Any, ...]:
    """The values of COLUMNS: seconds of an iteration on rank 0, NaN for what was not told.

    blocking_s: in waits for what the very next operation needs, exposed_s: in the others. bound_by: the name of what
    bounds the step, "" where no bound is told. shared: in words, that ranks take turns on cores, "" where they don't.
    """
    if breakdown is None:
        return (*[math.nan] * 7, "", math.nan, "")
    phases, bound = breakdown.phases, breakdown.bound
    new = version >= WITH_BOUND
    return (
        number(breakdown.compute_s),
        number(breakdown.collectives_s),
        number(sum(phase.blocking_s for phase in phases) if phases else None),
        number(sum(phase.exposed_s for phase in phases) if phases else None),
        number(breakdown.hidden_s if new else None),
        number(breakdown.share_hidden if new else None),
        positive(bound.bound_s if bound else None),
        clean(bound.by, 40) if bound else "",
        positive(bound.step_by_bound if bound else None),
        _shared(breakdown),
    )


def _shared(breakdown: Breakdown) -> str:
    """8 ranks of 1 thread each on 2 cores."""
    machine = breakdown.machine
    if machine is None or not machine.shared:
        return ""
    threads = plural(machine.threads_per_rank, "thread")
    return (
        f"{plural(machine.ranks, 'rank')} of {threads} each on {machine.cores:g} core{'s' if machine.cores > 1 else ''}"
    )
