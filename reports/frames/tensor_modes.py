"""Trainings of one network in several tensor modes, each with the batch of its own, beside what was published."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import pandas as pd

from engine.grid import Axis, Grid
from engine.published import machine_name, select
from engine.result.gate import over_jobs
from engine.result.judges.peers import FEWEST_JOBS
from engine.simulator.collectives import moved_bytes
from reports.frames.frame import Frames
from reports.frames.modes import MODES, of_series

STUDY = "tensor_modes"
PAPER = "colossal-ai"
_BY = ["system", "partition", "dtype", "model", "ranks", "network"]
_SHAPE = ["mode", "grid", "micro_batch", "batch_size", "checkpointing", "overlap", "tuning"]


@dataclass(frozen=True, slots=True)
class ModesSetting:
    """Network on so many devices of a machine, in the modes that were measured."""

    first: "pd.Series[Any]"
    table: pd.DataFrame
    """a row a shape, those of a mode the fastest first"""
    runs: pd.DataFrame


def settings(frames: Frames) -> list[ModesSetting]:
    """Part the runs that ended well by machine, network and devices, the most devices first."""
    runs = frames.runs[frames.runs["status"] == "ok"]
    runs = runs.assign(mode=[of_series(series) for series in runs["series"]])
    runs = runs[runs["mode"].isin(MODES)]
    moved = _moved_bytes(frames.collectives, runs["grid"])
    found = [_setting(rows, moved) for _, rows in runs.groupby(_BY, sort=False, dropna=False)]
    return sorted(found, key=lambda one: (str(one.first["system"]), -int(one.first["ranks"])))


def _moved_bytes(collectives: pd.DataFrame, grids: "pd.Series[Any]") -> "pd.Series[Any]":
    """Add up what a rank moves in a step, by run: of an all-reduce more than it gives."""
    moved = defaultdict[int, float](float)
    for row in collectives[collectives["run"].isin(grids.index)].to_dict("records"):
        ranks = Grid.parse(grids[row["run"]])[Axis(row["axis"])]
        moved[row["run"]] += moved_bytes(row["kind"], row["bytes"], ranks)
    return pd.Series(moved, dtype=float)


def _setting(runs: pd.DataFrame, moved: "pd.Series[Any]") -> ModesSetting:
    rows = [_row(jobs, moved) for _, jobs in runs.groupby(_SHAPE, sort=False, dropna=False)]
    table = pd.DataFrame(rows)
    order = table["mode"].map(MODES.index)
    table = table.assign(order=order).sort_values(["order", "images_per_s"], ascending=[True, False])
    best = table.drop_duplicates("mode").set_index("mode")["images_per_s"]
    table["over_1d"] = table["images_per_s"] / best["1D"] if "1D" in best else float("nan")
    return ModesSetting(runs.iloc[0], table.drop(columns="order").reset_index(drop=True), runs)


def _row(jobs: pd.DataFrame, moved: "pd.Series[Any]") -> dict[str, Any]:
    first, rates = jobs.iloc[0], jobs["images_per_s"].dropna().tolist()
    interval = over_jobs(rates) if len(rates) >= FEWEST_JOBS else None
    return {
        **{name: first[name] for name in _SHAPE},
        "images_per_s": median(rates) if rates else float("nan"),
        "images_per_s_low": interval.low if interval else float("nan"),
        "images_per_s_high": interval.high if interval else float("nan"),
        "time_s": jobs["time_s"].median(),
        "compute_s": jobs["compute_s"].median(),
        "collectives_s": jobs["collectives_s"].median(),
        "moved_bytes": moved.reindex(jobs.index).median(),
        "memory_max": jobs["memory_max"].median(),
        "jobs": len(jobs),
        "published": _published(first),
    }


def _published(job: "pd.Series[Any]") -> float:
    """Return the images a second that the paper prints of that point; NaN where it prints none."""
    printed = select(paper=PAPER, metric="images_per_s", devices=int(job["ranks"]))
    same = [
        number.value
        for number in printed
        if number.framework.endswith(f" {job['mode']}")
        and number.model.lower() == str(job["model"]).lower()
        and machine_name(number.system) == job["system"]
    ]
    return same[0] if same else float("nan")


def ranked(setting: ModesSetting) -> Sequence[str]:
    """List the modes of a setting, the fastest first."""
    best = setting.table.drop_duplicates("mode").sort_values("images_per_s", ascending=False)
    return tuple(best["mode"])
