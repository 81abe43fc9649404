"""The tables of the overlap study: every layout, every flag by grid, and the variants of one layout."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from reports import text
from reports.ablation import GREATEST, RATIOS, WORDS, Setting, most_exposed
from reports.columns import NO_BASE, columns_of, first
from reports.methods import INTERVALS
from reports.overlaps import FLAGS, NONE, flags, short
from reports.page import NOT_MEASURED, NOT_RECORDED, Column, Table

_WHAT, _WHERE = "model grid", "ranks nodes system network"
_FIGURES = f"share_hidden step_by_bound bound_by {GREATEST}"
"""These columns are read from a variant's own steps."""


def ratio(title: str, key: str = RATIOS[0], missing: str = NO_BASE) -> Column:
    ends = (f"{key}_low", f"{key}_high")
    return Column(title, key, text.ratio, missing=missing, figure="ratio_over_jobs", spread=ends, level=1.0)


def layouts(settings: Sequence[Setting], drawn: int) -> Table:
    """Make one row a setting: its fullest variant against none. drawn: how many have a section."""
    data = pd.DataFrame([_layout(setting) for setting in settings])
    columns = columns_of(
        first(data),
        _WHAT,
        ratio("Ratio to none"),
        f"gain {_FIGURES} none_s time_s hides share rounds {_WHERE} axis axis_s shared crowded",
        time_s="With", hides="which is", axis="Most exposed axis",
    )  # fmt: skip
    note = (
        "Every layout that ran: the variant that has the most flags, fast or slow, against none. Ratios with their "
        "intervals, in grey where they may be chance." + _intervals(data)
    )
    if drawn < len(settings):
        note += f" The {drawn} with the most variants are drawn below."
    return Table("Overlap by layout", columns, data, "layouts", note, "only_failed")


def _intervals(data: pd.DataFrame) -> str:
    """Say to a note what holds of these rows' intervals, and of a gain that is greater than the greatest."""
    said = f" {INTERVALS} Of the greatest gain, it is that of the ratio alone."
    if (data[GREATEST] > 1).any():
        said += " More than 100 %: the bound was measured too high, or the ratio happened to be low."
    return said


def _layout(setting: Setting) -> dict[Any, Any]:
    first, most = setting.first, setting.fullest()
    row = {key: first[key] for key in ("system", "model", "ranks", "grid", "network")} | {"nodes": setting.nodes}
    row |= {"share": _share(setting), "none_s": math.nan, "only_failed": setting.variants.empty}
    for _, none in setting.variants[setting.variants["overlap"] == NONE].iterrows():
        row["none_s"] = none["time_s"]
    if most is None:
        names = ("time_s", "rounds", *RATIOS, "gain", "gain_low", "gain_high", "share_hidden", "step_by_bound")
        missing = dict.fromkeys((*names, GREATEST, f"{GREATEST}_low", f"{GREATEST}_high", "axis_s"), math.nan)
        return row | missing | dict.fromkeys(("hides", "axis", *WORDS), "")
    axis, axis_s = most_exposed(most, setting.axes) or ("", math.nan)
    return row | most.to_dict() | {"hides": short(most["overlap"]), "axis": axis, "axis_s": axis_s}


def by_grid(settings: Sequence[Setting]) -> Table:
    """Make one row a setting: the paired ratio of each flag alone and of the fullest variant."""
    ran = [
        flag
        for flag in FLAGS
        if any((flag,) in setting.variants["overlap"].map(flags).tolist() for setting in settings)
    ]
    data = pd.DataFrame([_ratios(setting, ran) for setting in settings])
    columns = columns_of(
        first(data),
        _WHAT,
        ratio("All that ran", missing="not run"),
        *(ratio(f"{flag} alone", f"{flag}_ratio", "not run") for flag in ran),
        f"hides rounds {_WHERE}",
        missing={"hides": "none"},
        hides="All are",
    )
    note = (
        "Paired ratios of the time by that without overlap, with their intervals: less than 1 is faster, grey may be "
        f"chance. A flag for which a grid has no communication was not run. {INTERVALS}"
    )
    return Table("By grid", columns, data, "by-grid", note)


def _ratios(setting: Setting, ran: Sequence[str]) -> dict[Any, Any]:
    alone = setting.variants[setting.variants["place"] == "alone"]
    found = {flags(row["overlap"]): row for _, row in alone.iterrows()}
    ratios = {f"{flag}_{name}": found[flag,][name] if (flag,) in found else math.nan for flag in ran for name in RATIOS}
    return _layout(setting) | ratios


def variants(name: str, setting: Setting) -> Table:
    """List every variant with its ratios, times, what waits along each axis, and the memory it takes."""
    data = setting.variants.drop_duplicates("overlap")
    data = data.assign(hides=data["overlap"].map(short), share=_share(setting), spread=_ranges(data))
    columns = columns_of(
        "hides share rounds time_s spread",
        ratio("Ratio to the one before", "over_ratio", missing=""),
        ratio("Ratio to none", missing=""),
        f"gain {_FIGURES} bound_s compute_s processors_s hidden_s blocking_s exposed_s",
        *(
            Column(f"{title}, {axis}", f"{key}_{axis}", text.seconds, missing="none")
            for key, title in (("exposed", "Exposed"), ("hidden", "Behind compute"))
            for axis in setting.axes
        ),
        "prefetch_bytes cache_bytes cached_blocks",
        missing={"gain": "", "exposed_s": NOT_RECORDED},
        time_s="Step", spread="Rounds from, to, s", gain="Saved over none", exposed_s="Other exposed",
    )  # fmt: skip
    note = (
        "Medians over jobs; times are of one iteration on rank 0. Memory gathered ahead and cached is part of its peak."
        + _intervals(data)
    )
    if (data["step_by_bound"] < 1).any():
        note += " A step shorter than its bound: the bound was measured too high, as by another load on the machine."
    return Table("Variants", columns, data, f"{name}-details", note)


def _ranges(data: pd.DataFrame) -> list[str]:
    ends = zip(data["time_s_low"], data["time_s_high"], strict=True)
    return [
        f"{text.significant(low)} to {text.significant(high)}" if low == low else NOT_MEASURED for low, high in ends
    ]


def _share(setting: Setting) -> str:
    done, all_of_them = setting.jobs
    return f"{done} of {all_of_them}" if done < all_of_them else str(done)
