"""What each schedule of a pipeline takes in one setting, from jobs in which schedules took turns."""

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from engine.grid import Grid
from engine.result import metrics
from engine.result.pipeline import ScheduleTurns
from reports.ablation import RATIOS, paired
from reports.derived import by_row
from reports.frame import SETTING, Frames
from reports.pipelines import SCHEDULE_COLUMNS, Pipelines
from reports.text import positive

BASE = "1f1b"
_MEDIANS = SCHEDULE_COLUMNS[2:]


@dataclass(frozen=True, slots=True)
class Compared:
    """It is one setting. first: a job of it; runs: all its jobs. table: one row a schedule, BASE first, none where no
    job ended well: its label for a person, the medians over jobs, the paired ratio to BASE with its interval, how many
    jobs and rounds, and time_s_low and time_s_high, the fastest and the slowest round. records: of each row, those of
    its jobs, the newest last.
    """

    first: "pd.Series[Any]"
    runs: pd.DataFrame
    table: pd.DataFrame
    records: tuple[tuple[ScheduleTurns, ...], ...]

    @property
    def stages(self) -> int:
        """Count the stages."""
        return self._grid.stages

    @property
    def micro_batches(self) -> float:
        """Count those of a step on each rank; NaN where the jobs didn't record them."""
        batch, micro = (positive(self.first[key]) for key in ("batch_size", "micro_batch"))
        return batch / (micro * self._grid.batch_split)

    @property
    def _grid(self) -> Grid:
        return Grid.parse(self.first["grid"] or "1x1x1x1")

    def best(self) -> "pd.Series[Any] | None":
        """Give the schedule that takes the least of BASE's time; None where nothing was compared with it."""
        others = self.table[self.table["ratio"].notna()]
        return None if others.empty else others.sort_values("ratio").iloc[0]


def compared(frames: Frames) -> list[Compared]:
    """Give every setting of the comparisons among the runs, in the order of system, model, devices and grid."""
    runs = frames.runs[frames.runs["kind"] == "pipeline"].sort_values("end")
    groups = runs.groupby([*SETTING, "disturbed"], dropna=False)
    return [_compared(mine, frames.pipelines) for _, mine in groups]


def _compared(runs: pd.DataFrame, pipelines: Pipelines) -> Compared:
    """The runs are the jobs of one setting, oldest first."""
    ok = runs.index[runs["status"] == "ok"]
    rows = pipelines.table[pipelines.table["run"].isin(ok)]
    rows = rows.sort_values("run", key=lambda run: run.map(ok.get_loc), kind="stable").drop_duplicates(
        ["run", "schedule"]
    )
    groups = {str(name): mine for name, mine in rows.groupby("schedule", sort=False)}
    rounds = {
        name: {run: pipelines.rounds[at] for at, run in zip(mine.index, mine["run"], strict=True)}
        for name, mine in groups.items()
    }
    listed = []
    for name, mine in groups.items():
        times = [time_s for of_job in rounds[name].values() for time_s in of_job if time_s == time_s]
        auto = " (auto)" if pipelines.records[mine.index[-1]].auto else ""
        row = {"schedule": name, "label": f"{name}{auto}", **{key: mine[key].median() for key in _MEDIANS}}
        row |= {"jobs": len(mine), "rounds": len(times), "time_s_low": min(times, default=math.nan)}
        row["time_s_high"] = max(times, default=math.nan)
        listed.append(row | paired(rounds[name], {} if name == BASE else rounds.get(BASE, {}), RATIOS))
    columns = ["schedule", "label", *_MEDIANS, "jobs", "rounds", "time_s_low", "time_s_high", *RATIOS]
    table = pd.DataFrame(listed, columns=columns)
    for end, ratio_end in (("", ""), ("_low", "_high"), ("_high", "_low")):
        table[f"faster{end}"] = by_row(metrics.speed_up, 1.0, table[f"ratio{ratio_end}"])
    records = tuple(tuple(pipelines.records[at] for at in mine.index) for mine in groups.values())
    return Compared(runs.iloc[-1], runs, table, records)
