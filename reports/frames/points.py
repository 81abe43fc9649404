"""Jobs to points: repetitions of one measurement become a median with its spread and the number of jobs.

The replicate is the job: each job gives one number, its mean over counted iterations (axonn-sc24 VI-C).
"""

from collections.abc import Sequence

import pandas as pd

from engine.result import metrics
from reports.derived import by_row
from reports.frames.frame import POINT, SERIES, SETTING
from reports.frames.jobs import all_said, each_once
from reports.frames.overlaps import NONE
from reports.page import BINDING

MEASURES = [
    *("time_s", "hardware_flops_per_s", "model_flops_per_s", "tokens_per_s", "images_per_s"),
    *("hfu", "mfu", "of_empirical", "advertised"),
    *("compute_s", "collectives_s", "share_hidden", "bound_s", "step_by_bound", "processors_s"),
    *("memory_max", "memory_min", "prefetch_bytes", "cache_bytes", "cached_blocks"),
]
RANGED = ("time_s", "hardware_flops_per_s", "model_flops_per_s")
WORDS = ("bound_by", "empirical_from", "shared", "crowded")


def points(runs: pd.DataFrame, series: Sequence[str] = SERIES) -> pd.DataFrame:
    """Make one row a point, in the order of series and device count. series: the columns that tell series apart.

    For every measure: its median over the jobs that succeeded (NaN if none did), and for those in RANGED also the
    extremes, `_low` and `_high`. jobs, failed: numbers of jobs; reason: of the newest failure; newest: index of the
    newest job that succeeded (-1 if none); commits: how many versions of the code; those of WORDS: what the jobs
    say, each once; binding: how ranks were badly bound in any; batch_tokens: of a global batch; efficiency: see
    `with_efficiency`.
    """
    ordered = runs.sort_values("end", kind="stable").assign(newest=lambda table: table.index)
    ok = ordered["status"] == "ok"
    jobs = ordered.assign(
        **{key: ordered[key].where(ok) for key in (*MEASURES, "commit", "newest")},
        **{key: ordered[key].where(ok, "") for key in (*WORDS, BINDING)},
        jobs=ok,
        failed=~ok,
        reason=ordered["reason"].mask(ok),
    )
    table = jobs.groupby(POINT, dropna=False, sort=False).agg(
        **{key: (key, "median") for key in MEASURES},
        **{f"{key}_low": (key, "min") for key in RANGED},
        **{f"{key}_high": (key, "max") for key in RANGED},
        **{key: (key, each_once) for key in WORDS},
        **{BINDING: (BINDING, all_said)},
        **{key: (key, "sum") for key in ("jobs", "failed")},
        commits=("commit", "nunique"),
        **{key: (key, "last") for key in ("newest", "reason")},
    )
    table = table.reset_index().sort_values([*series, "ranks", "time_s"], kind="stable", ignore_index=True)
    return with_efficiency(
        table.assign(
            newest=table["newest"].fillna(-1).astype(int),
            reason=table["reason"].fillna(""),
            batch_tokens=pd.to_numeric(table["batch_size"], errors="coerce") * table["sequence"],
        ),
        series,
    )


def with_efficiency(table: pd.DataFrame, series: Sequence[str]) -> pd.DataFrame:
    """Add efficiency (metrics.efficiency) of each point, the base being the fastest layout of its series' smallest one.

    efficiency_low and efficiency_high: of its slowest and fastest job, against the same base.
    """
    by = list(series)
    table = table.copy()
    ranks = table["ranks"].astype(float)
    for end in ("", "_low", "_high"):
        table[f"per_device{end}"] = by_row(metrics.per_device, table[f"model_flops_per_s{end}"], ranks)
    measured = table.dropna(subset="per_device")
    smallest = measured.groupby(by, dropna=False)["ranks"].transform("min")
    base = measured[measured["ranks"] == smallest].groupby(by, dropna=False)["per_device"].max().rename("base")
    table = table.merge(base.reset_index(), on=by, how="left")
    for end in ("", "_low", "_high"):
        table[f"efficiency{end}"] = by_row(metrics.efficiency, table[f"per_device{end}"], table["base"])
    return table.drop(columns=["base", "per_device_low", "per_device_high"])


def with_gains(table: pd.DataFrame) -> pd.DataFrame:
    """Add none_s, the time of the same setting without overlap, and gain_none, what each point saves over it.

    Both are medians over jobs, each job with one overlap: the noise between jobs is in the gain, unlike in the paired
    ratios of an ablation. NaN where no job without overlap was measured, and for those themselves. gain_is_sure: of
    several jobs each, none of the one takes as long as any of the other.
    """
    names = {"time_s": "none_s", "time_s_low": "none_low", "time_s_high": "none_high", "jobs": "none_jobs"}
    base = table.loc[table["overlap"] == NONE, [*SETTING, *names]].rename(columns=names)
    merged = table.merge(base, on=SETTING, how="left")
    merged["gain_none"] = by_row(metrics.saved, merged["none_s"], merged["time_s"]).where(merged["overlap"] != NONE)
    apart = (merged["time_s_high"] < merged["none_low"]) | (merged["time_s_low"] > merged["none_high"])
    merged["gain_is_sure"] = apart & (merged["jobs"] > 1) & (merged["none_jobs"] > 1)
    return merged.drop(columns=["none_low", "none_high", "none_jobs"])


def with_solution(table: pd.DataFrame) -> pd.DataFrame:
    """Add solution_s, the seconds that the token budget takes at this point's rate (axonn-ipdps22 VI-D), or NaN.

    And per_million_s, the seconds a million tokens take: what falls in proportion where the batch grows with the
    devices.
    """
    rate = table["tokens_per_s"]
    return table.assign(
        solution_s=by_row(metrics.time_to_solution, table["token_budget"], rate),
        per_million_s=by_row(metrics.time_to_solution, 1e6, rate),
    )


def fastest(table: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest measured point at each device count, by model flop/s; what a line is drawn through."""
    measured = table.dropna(subset="model_flops_per_s").sort_values("model_flops_per_s", ascending=False)
    return measured.drop_duplicates("ranks").sort_values("ranks")


def runs_of(runs: pd.DataFrame, rows: pd.DataFrame, by: Sequence[str] = SERIES) -> pd.DataFrame:
    """Return the runs that agree in these columns with any of the points."""
    columns = list(by)
    kept = runs[columns].assign(run=runs.index).merge(rows[columns].drop_duplicates(), on=columns)
    return runs[runs.index.isin(kept["run"])]
