"""The tables of the overlap study: every layout, every flag by grid, and the variants of one layout."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from reports import text
from reports.ablation import GREATEST, RATIOS, WORDS, Setting, most_exposed
from reports.breakdowns import PROCESSORS
from reports.methods import INTERVALS
from reports.overlaps import FLAGS, NONE, flags, short
from reports.page import NOT_MEASURED, NOT_TOLD, Column, Table

NO_BASE = "no run without overlap"
_WHAT = (Column("Model", "model", numeric=False), Column("Grid", "grid", numeric=False))
_WHERE = (
    Column("Devices", "ranks", text.count),
    Column("Nodes", "nodes", text.count, missing="unknown"),
    Column("System", "system", numeric=False, missing="unnamed"),
    Column("Network", "network", numeric=False, missing="not told"),
)


def ratio(title: str, key: str = RATIOS[0], missing: str = NO_BASE) -> Column:
    """A column of paired ratios with their intervals."""
    return Column(
        title,
        key,
        text.ratio,
        missing=missing,
        figure="ratio_over_jobs",
        spread=(f"{key}_low", f"{key}_high"),
        level=1.0,
    )


def layouts(settings: Sequence[Setting], drawn: int) -> Table:
    """One row a setting: its fullest variant against none. drawn: how many have a section."""
    data = pd.DataFrame([_layout(setting) for setting in settings])
    columns = (
        *_WHAT,
        ratio("Ratio to none"),
        Column("Saved", "gain", text.gain, missing=NO_BASE, figure="saved"),
        *_figures(),
        Column("Without overlap", "none_s", text.seconds, missing=NO_BASE, figure="time_per_iteration"),
        Column("With", "time_s", text.seconds, figure="time_per_iteration"),
        Column("which is", "hides", numeric=False),
        Column("Jobs", "share", numeric=False),
        Column("Rounds", "rounds", text.count),
        *_WHERE,
        Column("Most exposed axis", "axis", numeric=False, missing="none"),
        Column("Exposed there", "axis_s", text.seconds, missing="none"),
        Column("Ranks that share cores", "shared", numeric=False, missing="no"),
        Column("No core left for collectives", "crowded", numeric=False, missing="no"),
    )
    note = (
        "Every layout that ran: the variant that has the most flags, fast or slow, against none. Ratios with their "
        "intervals, in grey where they may be chance." + _intervals(data)
    )
    if drawn < len(settings):
        note += f" The {drawn} with the most variants are drawn below."
    return Table("Overlap by layout", columns, data, "layouts", note, "only_failed")


def _figures() -> tuple[Column, ...]:
    """What a variant's own steps tell."""
    return (
        Column("Share hidden", "share_hidden", text.percent, missing=NOT_TOLD, figure="share_hidden"),
        Column("Step by its bound", "step_by_bound", text.times, missing=NOT_TOLD, figure="step_by_bound"),
        Column("Bound by", "bound_by", numeric=False, missing=NOT_TOLD),
        Column(
            "Of the greatest gain", GREATEST, text.gain, missing=NOT_TOLD, figure=GREATEST,
            spread=(f"{GREATEST}_low", f"{GREATEST}_high"), level=0.0,
        ),
    )  # fmt: skip


def _intervals(data: pd.DataFrame) -> str:
    """What a note says of the intervals of these rows, and of a gain that is greater than the greatest."""
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
        told = ("time_s", "rounds", *RATIOS, "gain", "gain_low", "gain_high", "share_hidden", "step_by_bound")
        missing = dict.fromkeys((*told, GREATEST, f"{GREATEST}_low", f"{GREATEST}_high", "axis_s"), math.nan)
        return row | missing | dict.fromkeys(("hides", "axis", *WORDS), "")
    axis, axis_s = most_exposed(most, setting.axes) or ("", math.nan)
    return row | most.to_dict() | {"hides": short(most["overlap"]), "axis": axis, "axis_s": axis_s}


def by_grid(settings: Sequence[Setting]) -> Table:
    """One row a setting: the paired ratio of each flag alone and of the fullest variant."""
    ran = [
        flag
        for flag in FLAGS
        if any((flag,) in setting.variants["overlap"].map(flags).tolist() for setting in settings)
    ]
    data = pd.DataFrame([_ratios(setting, ran) for setting in settings])
    columns = (
        *_WHAT,
        ratio("All that ran", missing="not run"),
        *(ratio(f"{flag} alone", f"{flag}_ratio", "not run") for flag in ran),
        Column("All are", "hides", numeric=False, missing="none"),
        Column("Rounds", "rounds", text.count),
        *_WHERE,
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
    """Every variant with its ratios, times, what waits along each axis, and the memory it takes."""
    data = setting.variants.drop_duplicates("overlap")
    data = data.assign(hides=data["overlap"].map(short), share=_share(setting), spread=_ranges(data))
    columns = [
        Column("Overlap", "hides", numeric=False),
        Column("Jobs", "share", numeric=False),
        Column("Rounds", "rounds", text.count),
        Column("Step", "time_s", text.seconds, figure="time_per_iteration"),
        Column("Rounds from, to, s", "spread", numeric=False),
        ratio("Ratio to the one before", "over_ratio", missing=""),
        ratio("Ratio to none", missing=""),
        Column("Saved over none", "gain", text.gain, missing="", figure="saved"),
        *_figures(),
        Column("Bound", "bound_s", text.seconds, missing=NOT_TOLD, figure="bound"),
        Column("Compute", "compute_s", text.seconds),
        PROCESSORS,
        Column("Hidden", "hidden_s", text.seconds, missing=NOT_TOLD),
        Column("Blocking", "blocking_s", text.seconds, missing=NOT_TOLD),
        Column("Other exposed", "exposed_s", text.seconds, missing=NOT_TOLD),
        *(Column(f"Exposed, {axis}", f"exposed_{axis}", text.seconds, missing="none") for axis in setting.axes),
        *(Column(f"Behind compute, {axis}", f"hidden_{axis}", text.seconds, missing="none") for axis in setting.axes),
        Column("Gathered ahead", "prefetch_bytes", text.memory, missing=NOT_TOLD),
        Column("In the cache", "cache_bytes", text.memory, missing=NOT_TOLD),
        Column("Blocks cached", "cached_blocks", text.count, missing=NOT_TOLD),
    ]  # fmt: skip
    note = (
        "Medians over jobs; times are of one iteration on rank 0. Memory gathered ahead and cached is part of its peak."
        + _intervals(data)
    )
    if (data["step_by_bound"] < 1).any():
        note += " A step shorter than its bound: the bound was measured too high, as by another load on the machine."
    return Table("Variants", tuple(columns), data, f"{name}-details", note)


def _ranges(data: pd.DataFrame) -> list[str]:
    ends = zip(data["time_s_low"], data["time_s_high"], strict=True)
    return [
        f"{text.significant(low)} to {text.significant(high)}" if low == low else NOT_MEASURED for low, high in ends
    ]


def _share(setting: Setting) -> str:
    done, all_of_them = setting.jobs
    return f"{done} of {all_of_them}" if done < all_of_them else str(done)
