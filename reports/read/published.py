"""Frames of published numbers (engine/published). Rates in flop/s, percentages as fractions."""

from functools import cache

import pandas as pd

from engine import published
from engine.result import metrics
from reports.derived import by_row

_POINT = ["paper", "system", "framework", "model", "ranks", "batch_tokens"]


def _frame(numbers: list[published.Number]) -> pd.DataFrame:
    """Make a row of each number, its value and highest in SI units; rows are named by `ranks` where jobs are meant."""
    rows = [
        one.model_dump() | {"source": one.source, "text": one.text, "value": one.si, "highest": one.highest_si}
        for one in numbers
    ]
    table = pd.DataFrame(rows)
    highest = table["highest"].astype(float)
    return table.assign(ranks=table["devices"], devices=table["devices"].astype(object).fillna(""), highest=highest)


def _points(numbers: list[published.Number], value: str, index: list[str]) -> pd.DataFrame:
    """Make a row of each point, with a column of each metric that it has."""
    return _frame(numbers).pivot(index=index, columns="metric", values=value).reset_index().rename_axis(columns=None)


@cache
def weak_scaling() -> pd.DataFrame:
    """Make a row of each published point: paper, system, framework, model, ranks, batch_tokens and its measures, with
    published_in and tolerance of what isn't implied.

    Percentages count recomputation: hfu is of the advertised peak, of_empirical of the empirical one. time_s is not
    printed in the papers but implied by the flop/s. efficiency: relative to the smallest point of the same series, by
    what is printed, the flop/s or the share of the peak.
    """
    numbers = [one for one in published.select(study="weak_scaling", highest=None) if one.batch_tokens]
    table = _points(numbers, "value", _POINT)
    stated = _frame([one for one in numbers if one.origin != "implied"]).drop_duplicates(_POINT)
    stated = stated.rename(columns={"source": "published_in"})[[*_POINT, "published_in", "tolerance"]]
    table = table.merge(stated, on=_POINT, how="left", validate="one_to_one")
    series = ["paper", "system", "framework"]
    table = table.sort_values([*series, "ranks"]).reset_index(drop=True)
    per_device = by_row(metrics.per_device, table["hardware_flops_per_s"], table["ranks"]).fillna(table["hfu"])
    smallest = per_device.groupby([table[name] for name in series]).transform("first")
    table["efficiency"] = by_row(metrics.efficiency, per_device, smallest)
    return table


@cache
def weak_scaling_ranges() -> pd.DataFrame:
    """Make a row of each point of which only the range of its series is printed, as weak_scaling has them.

    Columns: paper, source, system, framework, model, ranks, batch_tokens, both ends of hfu and of time_s.
    """
    numbers = [one for one in published.select(study="weak_scaling") if one.batch_tokens and one.highest is not None]
    low, high = (_points(numbers, end, _POINT) for end in ("value", "highest"))
    source = {(one.paper, one.framework): one.source for one in numbers if one.origin == "printed"}
    table = low.merge(high, on=_POINT, suffixes=("_low", "_high"))
    table = table.sort_values(["ranks", "framework"], ignore_index=True)
    return table.assign(source=[source[pair] for pair in zip(table["paper"], table["framework"], strict=True)])


@cache
def peaks() -> pd.DataFrame:
    """Make a row of each peak of a device: source, system, device, dtype, metric (advertised, empirical), value."""
    return _frame(published.select(study="peak"))


@cache
def gains(study: str = "") -> pd.DataFrame:
    """Make a row of each gain, of one study or of all.

    paper, source, system, framework, model, devices, study, gained, over, value, highest. value: the part of the time
    per batch that is saved, highest: the end of the range where one is printed, else NaN.
    """
    numbers = [one for one in published.select(metric="time_saved") if one.gained and one.study]
    return _frame([one for one in numbers if study in ("", one.study)])


@cache
def days_saved() -> pd.DataFrame:
    """Make a row of each number of days that a whole training takes less, as printed."""
    return _frame(published.select(metric="days_saved"))


@cache
def kernels() -> pd.DataFrame:
    """Make a row of each figure of tuned products, its value as printed, with its unit."""
    table = _frame(published.select(study="kernel_tuning"))
    return table.assign(value=table["text"])


@cache
def time_to_solution() -> pd.DataFrame:
    """Make a row of each time to train on so many tokens: paper, system, framework, model, ranks, tokens, solution_s.

    efficiency: parallel, from these times, relative to the smallest point of the same model.
    """
    table = _frame(published.select(metric="solution_s")).rename(columns={"value": "solution_s"})
    table = table.sort_values(["paper", "model", "ranks"], ignore_index=True)
    series = [table[name] for name in ("paper", "system", "model")]
    per_device = by_row(metrics.per_device, by_row(metrics.rate, table["tokens"], table["solution_s"]), table["ranks"])
    smallest = per_device.groupby(series).transform("first")
    return table.assign(efficiency=by_row(metrics.efficiency, per_device, smallest))


def matching(system: str, models: set[str], series: str = "") -> pd.DataFrame:
    """Return AxoNN's own points on a system if one of its models was measured, whatever the case of the names.

    Of every paper that has some, or of the one whose series was run, if that is known.
    """
    table = weak_scaling()
    wanted = {model.lower() for model in models}
    own = table[table["framework"].str.contains("AxoNN") & (table["system"].str.lower() == system.lower())]
    papers = own.loc[own["model"].str.lower().isin(wanted), "paper"].unique()
    return own[own["paper"].isin([series] if series in papers else papers)]
