"""Sides of contests that took turns in one job as a frame, one row a side of a job, and pooled over jobs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeGuard

import pandas as pd

from engine.result import metrics
from engine.result.schema import Result
from engine.result.schema.contest import GridSide, OptimisationSide, OverlapSide, Ratio, ScheduleSide, TrainingSide
from engine.result.schema.step import Breakdown, MachineUsage, Timeline
from reports.derived import by_row
from reports.frames.jobs import long
from reports.page import Column
from reports.text import clean, number, plural, positive, ratio, significant

STEP_COLUMNS = (
    *("compute_s", "collectives_s", "blocking_s", "exposed_s", "hidden_s", "share_hidden"),
    *("bound_s", "bound_by", "step_by_bound", "processors_s", "shared", "crowded"),
)
"""Columns of where a step's time goes, of a run as of a side."""
WITH_BOUND = 3
"""The first version whose results have a bound; until then hidden_s was another figure."""
OVERLAP_COLUMNS = (*STEP_COLUMNS, "prefetch_bytes", "cache_bytes", "cached_blocks")
SCHEDULE_COLUMNS = (
    *("simulated_s", "idle", "idle_least", "idle_most", "simulated_idle", "held", "pending", "peak_bytes"),
)
OPTIMISATION_COLUMNS = (*STEP_COLUMNS, "grid", "micro_batch", "tuned", "overlap")
GRID_COLUMNS = ("grid", "micro_batch", "schedule", "ratio", "low", "high", "predicted_s")
RATIOS = ("ratio", "ratio_low", "ratio_high")
ENDS = (("", ""), ("_low", "_high"), ("_high", "_low"))
"""Ends of a gain's interval, each with the end of the ratio's that it follows from."""
POOLED = ("jobs", "rounds", "time_s_low", "time_s_high", *RATIOS)
Rounds = dict[int, tuple[float, ...]]
"""A job's index leads to the seconds of each of its rounds."""


@dataclass(frozen=True)
class Sides:
    """Every side of every contest."""

    table: pd.DataFrame
    """A row a side: `run` is the index of its job in the frame of runs; kind, name and time_s every one has, others as
    their kind: OVERLAP_COLUMNS, SCHEDULE_COLUMNS, GRID_COLUMNS or OPTIMISATION_COLUMNS. idle_least, idle_most: of the
    stages.
    """
    axes: pd.DataFrame
    """Rows (side, axis, exposed_s, hidden_s) of overlaps."""
    rounds: Mapping[int, tuple[float, ...]]
    """By the index of the table, seconds of each round: the median of its steps, NaN for a round that has none."""
    records: Mapping[int, TrainingSide]
    """By the index of the table, what the result has of the side."""

    def of(self, runs: pd.DataFrame) -> "Sides":
        """Return those of these runs."""
        table = self.table[self.table["run"].isin(runs.index)]
        return Sides(table, self.axes[self.axes["side"].isin(table.index)], self.rounds, self.records)

    def timeline(self, at: int) -> Timeline | None:
        """Return the timeline of the side at this index of the table, if it has one."""
        side = self.records[at]
        return side.timeline if isinstance(side, OverlapSide) else None


def sides(results: Sequence[Result]) -> Sides:
    """Make the frame of all sides."""
    listed = [
        (run, side)
        for run, result in enumerate(results)
        for side in (result.contest.sides if result.contest else ())
        if not (isinstance(side, ScheduleSide) and not side.stages)
    ]
    rows = [_row(run, side, results[run].version) for run, side in listed]
    shared = ("run", "kind", "name", "time_s")
    own = (*OVERLAP_COLUMNS, *SCHEDULE_COLUMNS, *GRID_COLUMNS, *OPTIMISATION_COLUMNS)
    axes = long(
        [side for _, side in listed],
        lambda side: side.breakdown.axes if isinstance(side, OverlapSide) and side.breakdown else (),
        key="side",
        texts="axis",
        numbers="exposed_s hidden_s",
    )
    return Sides(
        pd.DataFrame(rows, columns=list(dict.fromkeys((*shared, *own)))),
        axes,
        {at: tuple(map(_round, side.rounds_s)) for at, (_, side) in enumerate(listed)},
        {at: side for at, (_, side) in enumerate(listed)},
    )


def _row(run: int, side: OverlapSide | ScheduleSide | GridSide | OptimisationSide, version: int) -> dict[str, Any]:
    row = {"run": run, "kind": side.kind, "time_s": positive(side.time_per_iteration_s), "name": clean(side.name, 60)}
    match side:
        case OverlapSide():
            memory = map(number, (side.prefetch_bytes, side.cache_bytes, side.cached_blocks))
            own: Sequence[Any] = (*step_values(side.breakdown, version), *memory)
            return row | {"name": clean(side.name)} | dict(zip(OVERLAP_COLUMNS, own, strict=True))
        case ScheduleSide():
            idle = [stage.idle_share for stage in side.stages]
            own = (
                positive(side.simulated_s),
                *map(_share, (side.idle_share, min(idle), max(idle), side.simulated_idle_share)),
                number(max(stage.most_held for stage in side.stages)),
                number(max(stage.most_pending for stage in side.stages)),
                positive(side.peak_bytes),
            )
            return row | dict(zip(SCHEDULE_COLUMNS, own, strict=True))
        case GridSide():
            named = (clean(side.grid), number(side.micro_batch), clean(side.schedule or "", 60))
            own = (*named, *_ends(side.over_base), positive(side.predicted_s))
            return row | dict(zip(GRID_COLUMNS, own, strict=True))
        case OptimisationSide():
            setting = (clean(side.grid), number(side.micro_batch), "tuned" if side.tuned else "", clean(side.overlap))
            own = (*step_values(side.breakdown, version), *setting)
            return row | dict(zip(OPTIMISATION_COLUMNS, own, strict=True))


def _ends(over: Ratio | None) -> tuple[float, float, float]:
    return (math.nan,) * 3 if over is None else (number(over.ratio), number(over.low), number(over.high))


def _round(times_s: Sequence[float]) -> float:
    return positive(median(times_s) if times_s else None)


def _share(value: float) -> float:
    return value if 0 <= value <= 1 else math.nan


@dataclass(frozen=True, slots=True)
class Pool:
    """Sides of the same name over the jobs of one setting, oldest first."""

    rows: pd.DataFrame
    """A row a side of a job."""
    by_name: Mapping[str, pd.DataFrame]
    """The same by name, in the order of the first job."""
    rounds: Mapping[str, Rounds]

    @classmethod
    def of(cls, runs: pd.DataFrame, every: Sides, kind: str) -> "Pool":
        """Pool the sides of that kind. runs: jobs of one setting, oldest first; those that failed don't count."""
        ok = runs.index[runs["status"] == "ok"]
        rows = every.table[every.table["run"].isin(ok) & (every.table["kind"] == kind)]
        rows = rows.sort_values("run", key=lambda run: run.map(ok.get_loc), kind="stable")
        rows = rows.drop_duplicates(["run", "name"])
        groups = {str(name): mine for name, mine in rows.groupby("name", sort=False)}
        rounds = {
            name: {run: every.rounds[at] for at, run in zip(mine.index, mine["run"], strict=True)}
            for name, mine in groups.items()
        }
        return cls(rows, groups, rounds)

    def row(self, name: str, medians: Sequence[str], base: str) -> dict[str, Any]:
        """Return a side's medians over jobs, its fastest and slowest round, and its paired ratio to the base."""
        mine, rounds = self.by_name[name], self.rounds[name]
        times = [time_s for of_job in rounds.values() for time_s in of_job if time_s == time_s]
        return {
            **{key: mine[key].median() for key in medians},
            "jobs": len(mine),
            "rounds": len(times),
            "time_s_low": min(times, default=math.nan),
            "time_s_high": max(times, default=math.nan),
            **self.ratio(name, base if base != name else "", RATIOS),
        }

    def ratio(self, name: str, base: str, keys: Sequence[str]) -> dict[str, float]:
        """Give the paired ratio to the base and its interval these keys; NaN without a round of both, and where nothing
        is known of it.
        """
        against = self.rounds.get(base, {})
        jobs = [
            [pair for pair in zip(times_s, against.get(run, ()), strict=False) if not any(map(math.isnan, pair))]
            for run, times_s in self.rounds[name].items()
        ]
        if not any(jobs):
            return dict.fromkeys(keys, math.nan)
        return dict(zip(keys, _ends(Ratio.of(metrics.paired(jobs))), strict=True))


def with_speed_ups(table: pd.DataFrame, before: str = "") -> None:
    """Add how many times as fast each ratio is (faster), with the ends of the interval. before: a prefix of both."""
    for end, ratio_end in ENDS:
        table[f"{before}faster{end}"] = by_row(metrics.speed_up, 1.0, table[f"{before}ratio{ratio_end}"])


def ratio_column(title: str, key: str = RATIOS[0], *, missing: str) -> Column:
    """Make the column of a paired ratio over jobs with its interval."""
    ends = (f"{key}_low", f"{key}_high")
    return Column(title, key, ratio, missing=missing, figure="ratio_over_jobs", spread=ends, level=1.0)


def ranges(table: pd.DataFrame, missing: str) -> list[str]:
    """Write the fastest and the slowest round of each row."""
    ends = zip(table["time_s_low"], table["time_s_high"], strict=True)
    return [f"{significant(low)} to {significant(high)}" if low == low else missing for low, high in ends]


def step_values(breakdown: Breakdown | None, version: int) -> tuple[Any, ...]:
    """Return the values of STEP_COLUMNS: seconds of an iteration on rank 0, NaN for what was not recorded.

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
    """Write such words as: 8 ranks of 1 thread each on 2 cores."""
    threads = plural(machine.threads_per_rank, "thread")
    return (
        f"{plural(machine.ranks, 'rank')} of {threads} each on {machine.cores:g} core{'s' if machine.cores > 1 else ''}"
    )
