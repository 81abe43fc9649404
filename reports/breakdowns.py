"""Columns of where a step's time goes: the same for a run and for a variant of an ablation."""

import math
from typing import Any, TypeGuard

from engine.result import metrics
from engine.result.schema.step import Breakdown, MachineUsage
from reports.text import clean, number, plural, positive

COLUMNS = (
    *("compute_s", "collectives_s", "blocking_s", "exposed_s", "hidden_s", "share_hidden"),
    *("bound_s", "bound_by", "step_by_bound", "processors_s", "shared", "crowded"),
)
WITH_BOUND = 3
"""The first version whose results have a bound; until then hidden_s was another figure."""


def values(breakdown: Breakdown | None, version: int) -> tuple[Any, ...]:
    """Return the values of COLUMNS: seconds of an iteration on rank 0, NaN for what was not recorded.

    blocking_s: in waits for what the very next operation needs, exposed_s: in the others. bound_by: the name of what
    bounds the step, "" where no bound is known. processors_s: what all ranks of the machine took of its processors,
    over its cores. shared, crowded: the ranks and cores in words where ranks take turns on cores, and where they don't
    but compute on each, so that the threads of their collectives have none of their own; else "".
    """
    if breakdown is None:
        return (*[math.nan] * 7, "", *[math.nan] * 2, "", "")
    phases, bound, machine = breakdown.phases, breakdown.bound, breakdown.machine
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
        positive(metrics.bound_on_shared_cores(machine.processor_s, machine.cores, 0.0) if _known(machine) else None),
        _taken(machine) if machine and machine.shared else "",
        _taken(machine) if machine and breakdown.lanes and _full(machine) else "",
    )


def take_turns(words: str) -> str:
    """Say what `shared` means for the figures beside it."""
    return (
        f"Ranks take turns on cores here, {words}: a wait is mostly the turn of another rank, so hiding it gains "
        "nothing and the share hidden says little. The bound is that of the processors or of the link."
    )


def no_core_left(words: str) -> str:
    """Say what `crowded` means for the figures beside it."""
    return (
        f"Every core computes here, {words}: the threads that carry out collectives have no core of their own and take "
        "the time of compute, so that hiding a collective gains little and makes compute longer. Processor seconds "
        "over cores, beside compute in the details, count both."
    )


def _known(machine: MachineUsage | None) -> TypeGuard[MachineUsage]:
    return machine is not None and machine.cores > 0


def _full(machine: MachineUsage) -> bool:
    return not machine.shared and machine.ranks * machine.threads_per_rank >= machine.cores


def _taken(machine: MachineUsage) -> str:
    """The words are such as: 8 ranks of 1 thread each on 2 cores."""
    threads = plural(machine.threads_per_rank, "thread")
    return (
        f"{plural(machine.ranks, 'rank')} of {threads} each on {machine.cores:g} core{'s' if machine.cores > 1 else ''}"
    )
