"""Numbers of the papers, as data with their source (published/*.csv). Rates in flop/s, percentages as fractions."""

from functools import cache
from pathlib import Path

import pandas as pd

from engine.result import metrics
from reports.derived import by_row
from reports.text import DAY

_FOLDER = Path(__file__).with_name("published")
_UNITS = {
    **{"%": 0.01, "Pflop/s": 1e15, "Tflop/s": 1e12, "s": 1.0},
    **{"days": DAY, "months": 365.25 / 12 * DAY, "years": 365.25 * DAY},
}
_MEASURES = {
    "sustained": "hardware_flops_per_s",
    "pct_advertised_peak": "hfu",
    "pct_empirical_peak": "of_empirical",
    "batch_time": "time_s",
}


def _read(name: str) -> pd.DataFrame:
    table = pd.read_csv(_FOLDER / name, keep_default_na=False)
    for column in {"value", "highest"} & set(table) if "unit" in table else ():
        table[column] = pd.to_numeric(table[column]) * table["unit"].map(_UNITS)
    return table.assign(paper=table["source"].str.split(" ").str[0])


@cache
def weak_scaling() -> pd.DataFrame:
    """Make one row a published point: paper, system, framework, model, ranks, batch_tokens and the measures it has.

    Percentages count recomputation: hfu is of the advertised peak, of_empirical of the empirical one. time_s is not
    printed in the papers but implied by the flop/s. efficiency: relative to the smallest point of the same series, by
    what is printed, the flop/s or the share of the peak.
    """
    rows = _read("weak_scaling.csv")
    rows = rows[rows["metric"].isin(list(_MEASURES))].assign(
        ranks=rows["devices"], metric=rows["metric"].map(_MEASURES)
    )
    key = ["paper", "system", "framework", "model", "ranks", "batch_tokens"]
    table = rows.pivot(index=key, columns="metric", values="value").reset_index().rename_axis(columns=None)
    series = ["paper", "system", "framework"]
    table = table.sort_values([*series, "ranks"]).reset_index(drop=True)
    per_device = by_row(metrics.per_device, table["hardware_flops_per_s"], table["ranks"]).fillna(table["hfu"])
    smallest = per_device.groupby([table[name] for name in series]).transform("first")
    table["efficiency"] = by_row(metrics.efficiency, per_device, smallest)
    return table


@cache
def weak_scaling_ranges() -> pd.DataFrame:
    """Make one row a point of which only the range of its series is printed: paper, source, system, framework, model,
    ranks, batch_tokens, and both ends of hfu and time_s, as weak_scaling has them.
    """
    table = _read("weak_scaling_ranges.csv").rename(columns={"devices": "ranks"})
    return table.assign(hfu_low=table["hfu_low"] / 100, hfu_high=table["hfu_high"] / 100)


@cache
def peaks() -> pd.DataFrame:
    """A row is a published peak of a device: source, system, device, dtype, metric (advertised, empirical), value."""
    return _read("peaks.csv")


@cache
def gains(study: str = "") -> pd.DataFrame:
    """Make one row a published gain, of one study or of all.

    paper, source, system, framework, model, devices, study, gained, over, value, highest. value: the part of the time
    per batch that is saved, highest: the end of the range where one is printed, else NaN.
    gained, over: for overlaps flags as the engine writes them, the cache without its size.
    """
    rows = _read("gains.csv")
    return rows[rows["study"] == study] if study else rows


@cache
def kernels() -> pd.DataFrame:
    """Make one row a published figure of tuned products: source, system, framework, model, devices, what, value, note.

    value: as it is printed, with its unit.
    """
    return _read("kernels.csv")


@cache
def time_to_solution() -> pd.DataFrame:
    """A row is a published time to train on so many tokens: paper, system, framework, model, ranks, solution_s.

    efficiency: parallel, from these times, relative to the smallest point of the same model. A month is a twelfth of
    365.25 days.
    """
    table = _read("time_to_solution.csv").rename(columns={"devices": "ranks", "value": "solution_s"})
    series = [table[name] for name in ("paper", "system", "model")]
    per_device = by_row(metrics.per_device, by_row(metrics.rate, table["tokens"], table["solution_s"]), table["ranks"])
    smallest = per_device.groupby(series).transform("first")
    return table.assign(efficiency=by_row(metrics.efficiency, per_device, smallest))


def matching(system: str, models: set[str], series: str = "") -> pd.DataFrame:
    """AxoNN's own published points on a system if one of its models was measured, whatever the case of the names.

    Of every paper that has some, or of the one whose series was run, if that is known.
    """
    table = weak_scaling()
    wanted = {model.lower() for model in models}
    own = table[table["framework"].str.contains("AxoNN") & (table["system"].str.lower() == system.lower())]
    papers = own.loc[own["model"].str.lower().isin(wanted), "paper"].unique()
    return own[own["paper"].isin([series] if series in papers else papers)]
