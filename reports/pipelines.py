"""The schedules of pipelines as frames: one row a schedule of a job, and the schedules themselves for pictures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pandas as pd

from engine.result.pipeline import ScheduleTurns
from engine.result.schema import Result
from reports.text import clean, count, number, positive

SCHEDULE_COLUMNS = (
    *("run", "schedule", "time_s", "simulated_s", "idle", "idle_least", "idle_most", "simulated_idle"),
    *("held", "pending", "peak_bytes"),
)


@dataclass(frozen=True)
class Pipelines:
    """The table has one row a schedule, whose `run` is the index of its job in the frame of runs.

    idle_least, idle_most: of the stages. rounds have by the index of the table the time of each round in seconds (the
    median of its steps), and records what the result has of the schedule.
    """

    table: pd.DataFrame
    rounds: Mapping[int, tuple[float, ...]]
    records: Mapping[int, ScheduleTurns]

    def of(self, runs: pd.DataFrame) -> "Pipelines":
        return Pipelines(self.table[self.table["run"].isin(runs.index)], self.rounds, self.records)


def pipelines(results: Sequence[Result]) -> Pipelines:
    listed = [(run, one) for run, result in enumerate(results) for one in result.schedules if one.stages]
    return Pipelines(
        pd.DataFrame([_row(run, one) for run, one in listed], columns=list(SCHEDULE_COLUMNS)),
        {at: tuple(positive(median(times) if times else None) for times in one.rounds_s) for at, (_, one) in
         enumerate(listed)},
        {at: one for at, (_, one) in enumerate(listed)},
    )  # fmt: skip


def _row(run: int, one: ScheduleTurns) -> tuple[Any, ...]:
    idle = [stage.idle_share for stage in one.stages]
    return (
        run,
        clean(one.schedule, 60),
        positive(one.time_per_iteration_s),
        positive(one.simulated_s),
        *map(_share, (one.idle_share, min(idle), max(idle), one.simulated_idle_share)),
        *map(number, (max(stage.most_held for stage in one.stages), max(stage.most_pending for stage in one.stages))),
        positive(one.peak_bytes),
    )


def _share(value: float) -> float:
    return value if 0 <= value <= 1 else math.nan


def disturbed(config: Mapping[str, Any]) -> str:
    """Say what was made slower on purpose; "" for nothing."""
    said = []
    stage, delays_s = number(config.get("slow_stage")), positive(config.get("delays_s"))
    if stage == stage:
        said.append(f"stage {count(stage)} slower by {100 * number(config.get('slow_by')):.4g} %")
    if delays_s > 0:
        said.append(f"messages up to {1e3 * delays_s:.4g} ms late")
    return ", ".join(said)
