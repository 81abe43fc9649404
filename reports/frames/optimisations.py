"""Optimisations added one after the other, in turns in one job: each setting with its sides, pooled over jobs."""

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from engine.result import metrics
from engine.result.gate import NOTHING_KNOWN, Interval, Outcome, on_one_side
from reports.derived import by_row
from reports.frames.frame import SETTING, Frames
from reports.frames.sides import ENDS, POOLED, RATIOS, Pool, Sides
from reports.read import published

KIND = "optimisations"
"""Kind of a result, whose sides are of the kind SIDE."""
SIDE = "optimisation"
MEDIANS = ("time_s", "compute_s", "collectives_s")
OVER = tuple(f"over_{name}" for name in RATIOS)
VERDICTS: dict[Outcome, str] = {"pass": "faster", "fail": "slower", "undecided": "undecided"}
"""Words for a person of a step's ratio to the one before it."""
GAINED = {"grid": "layout by the performance model", "tuning": "matrix multiplication tuning", "overlap": "oar,ors,oag"}
"""Names in the published gains of the optimisation that a side adds."""
_SETTING = ("grid", "micro_batch", "tuned", "overlap")
_COLUMNS = ["side", "former", *_SETTING, *MEDIANS, *POOLED, *OVER]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. first: a job of it; runs: all its jobs that ended well; sides: one row each, the baseline first.

    sides have the medians over jobs of MEDIANS; time_s_low and time_s_high, the fastest and the slowest round; jobs and
    rounds, how many; ratio, ratio_low and ratio_high, the paired ratio over the baseline, and over_ratio and so on over
    the side before (former); saved, saved_low and saved_high of that; total, total_low and total_high over the
    baseline; verdict of the step; published, its published gain in words, "" of the baseline.
    """

    first: "pd.Series[Any]"
    runs: pd.DataFrame
    sides: pd.DataFrame


def settings(frames: Frames) -> list[Setting]:
    """Return every setting whose optimisations were measured, in the order of system, model, devices and grids."""
    runs = frames.runs[(frames.runs["kind"] == KIND) & (frames.runs["status"] == "ok")]
    rows = frames.sides.table[frames.sides.table["kind"] == SIDE]
    grids = rows.groupby("run")["grid"].agg(" ".join)
    runs = runs.assign(grids=grids.reindex(runs.index).fillna(""))
    groups = runs.groupby([*SETTING, "grids", "nodes"], dropna=False)
    return [_setting(mine.sort_values("end"), frames.sides) for _, mine in groups]


def _setting(runs: pd.DataFrame, every: Sides) -> Setting:
    """Make the setting of these jobs, oldest first."""
    pool, first = Pool.of(runs, every, SIDE), runs.iloc[-1]
    names = list(pool.by_name)
    listed: list[dict[str, Any]] = []
    for former, name in zip(["", *names], names, strict=False):
        newest = pool.by_name[name].iloc[-1]
        row = {"side": name, "former": former} | {key: newest[key] for key in _SETTING}
        listed.append(row | pool.row(name, MEDIANS, names[0]) | pool.ratio(name, former, OVER))
    table = pd.DataFrame(listed, columns=_COLUMNS)
    for end, ratio_end in ENDS:
        table[f"saved{end}"] = by_row(metrics.saved, 1.0, table[f"over_ratio{ratio_end}"])
        table[f"total{end}"] = by_row(metrics.saved, 1.0, table[f"ratio{ratio_end}"])
    table["verdict"] = [
        VERDICTS[on_one_side(_interval(low, high), 1.0)] if former else ""
        for former, low, high in zip(table["former"], table["over_ratio_low"], table["over_ratio_high"], strict=True)
    ]
    table["published"] = [_published(name) for name in table["side"]]
    return Setting(first, runs, table)


def _interval(low: float, high: float) -> Interval:
    return NOTHING_KNOWN if math.isnan(low) or math.isnan(high) else Interval(low, high)


def published_gains() -> pd.DataFrame:
    """Select the published gains of these steps (axonn-sc24 VII-A, Fig. 7)."""
    gains = published.gains("weak_scaling")
    return gains[(gains["paper"] == "axonn-sc24") & gains["gained"].isin(GAINED.values())]


def _published(side: str) -> str:
    """Write the published gain of a step, of whatever models: 13 to 45 %, or up to 22 %."""
    gains = published_gains()
    for _, row in gains[gains["gained"] == GAINED.get(side)].iterrows():
        low, high = 100 * row["value"], 100 * row["highest"]
        return f"{low:g} to {high:g} %" if high == high else f"up to {low:g} %"
    return ""
