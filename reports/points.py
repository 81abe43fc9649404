"""Jobs to points: repetitions of one measurement become a median with its spread and the number of jobs.

The replicate is the job: each job gives one number, its mean over counted iterations (axonn-sc24 VI-C).
"""

from collections.abc import Sequence

import pandas as pd

from reports.frame import POINT, SERIES

MEASURES = [
    *("time_s", "hardware_flops_per_s", "model_flops_per_s", "tokens_per_s", "hfu", "mfu", "of_empirical"),
    *("compute_s", "collectives_s", "blocking_s", "exposed_s", "hideable_s", "hidden_s"),
    *("memory_max", "memory_min", "prefetch_bytes", "cache_bytes", "cached_blocks"),
]


def points(runs: pd.DataFrame, series: Sequence[str] = SERIES) -> pd.DataFrame:
    """One row a point, in the order of series and device count. series: the columns that tell series apart.

    For every measure: its median over the jobs that succeeded (NaN if none did), and for time_s and
    hardware_flops_per_s also the extremes, `_low` and `_high`. jobs, failed: numbers of jobs; reason: of the newest
    failure; newest: index of the newest job that succeeded (-1 if none); commits: how many versions of the code;
    batch_tokens: of a global batch;
    efficiency: see `with_efficiency`.
    """
    ordered = runs.sort_values("end", kind="stable")
    ok = ordered[ordered["status"] == "ok"]
    bad = ordered[ordered["status"] != "ok"]
    keys = ordered.drop_duplicates(POINT)[POINT]

    done = ok.groupby(POINT, dropna=False, sort=False)
    table = done[MEASURES].median()
    for measure in ("time_s", "hardware_flops_per_s"):
        table[f"{measure}_low"] = done[measure].min()
        table[f"{measure}_high"] = done[measure].max()
    table["jobs"] = done.size()
    table["commits"] = done["commit"].nunique()
    table["newest"] = ok.assign(job=ok.index).groupby(POINT, dropna=False, sort=False)["job"].last()
    lost = bad.groupby(POINT, dropna=False, sort=False)
    failures = pd.DataFrame({"failed": lost.size(), "reason": lost["reason"].last()})

    merged = keys.merge(table.reset_index(), on=POINT, how="left").merge(failures.reset_index(), on=POINT, how="left")
    for column in ("jobs", "failed", "commits"):
        merged[column] = merged[column].fillna(0).astype(int)
    merged["newest"] = merged["newest"].fillna(-1).astype(int)
    merged["reason"] = merged["reason"].fillna("")
    merged = merged.sort_values([*series, "ranks", "time_s"], kind="stable").reset_index(drop=True)
    merged["batch_tokens"] = pd.to_numeric(merged["batch_size"], errors="coerce") * merged["sequence"]
    return with_efficiency(merged, series)


def with_efficiency(table: pd.DataFrame, series: Sequence[str]) -> pd.DataFrame:
    """Add efficiency: model flop/s per device, relative to the series' smallest point (axonn-sc24 VII-A).

    In a series of one model and batch that is the parallel efficiency. Model flops, so that a series that turns
    activation checkpointing on at some size isn't flattered by it; where it is the same all along, hardware flops give
    the same ratio. The smallest point's fastest layout is the base.
    """
    by = list(series)
    table = table.copy()
    table["per_device"] = table["model_flops_per_s"] / table["ranks"].astype(float)
    measured = table.dropna(subset="per_device")
    smallest = measured.groupby(by, dropna=False)["ranks"].transform("min")
    base = measured[measured["ranks"] == smallest].groupby(by, dropna=False)["per_device"].max().rename("base")
    table = table.merge(base.reset_index(), on=by, how="left")
    table["efficiency"] = table["per_device"] / table["base"]
    return table.drop(columns="base")


def fastest(table: pd.DataFrame) -> pd.DataFrame:
    """The fastest measured point at each device count, by model flop/s; what a line is drawn through."""
    measured = table.dropna(subset="model_flops_per_s").sort_values("model_flops_per_s", ascending=False)
    return measured.drop_duplicates("ranks").sort_values("ranks")


def runs_of(runs: pd.DataFrame, rows: pd.DataFrame, by: Sequence[str] = SERIES) -> pd.DataFrame:
    """The runs that agree in these columns with any of the points."""
    columns = list(by)
    kept = runs[columns].assign(run=runs.index).merge(rows[columns].drop_duplicates(), on=columns)
    return runs[runs.index.isin(kept["run"])]
