"""What each overlap buys: variants of one setting in the papers' order, and their gains (par4d IV, axonn-sc24 V-D).

A gain is the part of the time per batch that is saved, against the run without overlap. What of the communication
that compute could hide is hidden, each run tells by itself.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import pandas as pd

from engine.grid import Axis
from engine.overlap.flags import ALL
from reports.frame import POINT, SETTING, Frames

FLAGS = ("oar", "ors", "oag", "cache", "data")
_ORDERS = (FLAGS, tuple(flag for flag in FLAGS if flag != "cache"))
NONE = "none"
MOST_AXES = 8
_AXES = tuple(Axis)
Place = Literal["ladder", "alone", "other"]


def flags(overlap: str) -> tuple[str, ...] | None:
    """The flags of an overlap's text in the papers' order, the cache without its size; None for what isn't one."""
    words = () if overlap == NONE else tuple(word.partition("=")[0] for word in overlap.split(","))
    return tuple(flag for flag in FLAGS if flag in words) if set(words) <= set(FLAGS) else None


def short(overlap: str) -> str:
    """An overlap's text as it is typed: "all" for all of its flags."""
    return "all" if overlap == str(ALL) else overlap


def with_gains(points: pd.DataFrame) -> pd.DataFrame:
    """Add what each point gains over the one of the same setting without overlap; NaN where that wasn't measured.

    gain_none: the part of its time that is saved; none_s, none_low, none_high: time without overlap. hidden is told
    by the point alone: the communication behind compute, as part of what could be; NaN where nothing could be.
    """
    columns = {"time_s": "none_s", "time_s_low": "none_low", "time_s_high": "none_high"}
    base = points.loc[points["overlap"] == NONE, [*SETTING, *columns]].rename(columns=columns)
    table = points.merge(base, on=SETTING, how="left")
    other = table["overlap"] != NONE
    saved = (table["none_s"] - table["time_s"]).where(other)
    table["gain_none"] = saved / table["none_s"]
    table["hidden"] = table["hidden_s"] / table["hideable_s"].where(table["hideable_s"] > 0)
    return table


def in_order(points: pd.DataFrame) -> pd.DataFrame:
    """The variants of one setting: one flag after another, then each flag alone, then what else was run.

    points: of one setting, with gains; the fastest is taken of those with the same flags. Adds place (ladder, alone,
    other), label, and for the ladder over (the overlap of the measured variant before), gain_over and over_low,
    over_high (its fastest and slowest job). A single flag that begins the ladder is listed alone too.
    """
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in points.sort_values("time_s", na_position="last").to_dict("records"):
        words = flags(row["overlap"])
        if words is not None:
            found.setdefault(words, {str(key): value for key, value in row.items()})
    ladder = _ladder(found)
    alone = [(flag,) for flag in FLAGS if (flag,) in found]
    others = sorted((words for words in found if words not in (*ladder, *alone)), key=lambda words: (len(words), words))
    listed = []
    before: tuple[str, ...] | None = None
    for words in ladder:
        listed.append(_on_ladder(found, words, before))
        if listed[-1]["jobs"]:
            before = words
    listed += [_apart(found[words], "alone") for words in alone]
    listed += [_apart(found[words], "other") for words in others]
    return pd.DataFrame(listed, columns=[*points.columns, *_ADDED])


_ADDED = ("place", "label", "over", "gain_over", "over_low", "over_high")


def fullest(points: pd.DataFrame) -> pd.DataFrame:
    """Of each setting the measured variant with the most flags, of those that add one flag after another."""
    steps = {order[:length]: length for order in _ORDERS for length in range(1, len(order) + 1)}
    depth = points["overlap"].map(flags).map(lambda words: steps.get(words, 0))
    ranked = points.assign(depth=depth)[(points["jobs"] > 0) & (depth > 0)]
    ranked = ranked.sort_values(["depth", "time_s"], ascending=[True, False], kind="stable")
    return ranked.drop_duplicates(SETTING, keep="last").drop(columns="depth").sort_index()


def within_spread(row: "pd.Series[Any]", which: Literal["over", "none"]) -> bool:
    """Whether the jobs of a variant, and of what it is compared with, are too scattered to tell them apart."""
    return bool(row["time_s_low"] <= row[f"{which}_high"] and row[f"{which}_low"] <= row["time_s_high"])


def by_axis(points: pd.DataFrame, frames: Frames) -> tuple[pd.DataFrame, list[str]]:
    """Add exposed_AXIS and hidden_AXIS, medians over a point's jobs in seconds; the second are the axes that ran."""
    numbers = points[POINT].assign(point=range(len(points)))
    done = frames.runs[frames.runs["status"] == "ok"]
    mine = done[POINT].assign(run=done.index).merge(numbers, on=POINT)[["run", "point"]]
    times = frames.axes.merge(mine, on="run").groupby(["point", "axis"])[["exposed_s", "hidden_s"]].median()
    axes = sorted(
        times.index.unique("axis"), key=lambda axis: (_AXES.index(axis) if axis in _AXES else len(_AXES), axis)
    )
    axes = axes[:MOST_AXES]
    table = points.reset_index(drop=True)
    for kind in ("exposed", "hidden"):
        wide = times[f"{kind}_s"].unstack("axis").reindex(index=range(len(points)), columns=axes)
        table = pd.concat([table, wide.add_prefix(f"{kind}_")], axis=1)
    return table, axes


def most_exposed(row: "pd.Series[Any]", axes: Sequence[str]) -> tuple[str, float] | None:
    """The axis that compute waits for longest, and for how many seconds; None where none was measured."""
    waits = [(row[f"exposed_{axis}"], axis) for axis in axes if row[f"exposed_{axis}"] > 0]
    return (max(waits)[1], max(waits)[0]) if waits else None


def _ladder(found: Iterable[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Those with the first flags of the papers' order; the cache has no step where no run of the ladder had it."""
    kept = set(found)
    whole, without = _ORDERS
    order = whole if any("cache" in words and words == whole[: len(words)] for words in kept) else without
    return [order[:length] for length in range(len(order) + 1) if order[:length] in kept]


def _on_ladder(
    found: dict[tuple[str, ...], dict[str, Any]], words: tuple[str, ...], before: tuple[str, ...] | None
) -> dict[str, Any]:
    row = found[words]
    added = [word for word in row["overlap"].split(",") if word.partition("=")[0] not in (before or ())]
    label = f"+ {' '.join(added)}" if words and before is not None else short(row["overlap"])
    past = found[before] if before is not None else None
    over = {
        "over": "" if past is None else past["overlap"],
        "gain_over": float("nan") if past is None else 1 - row["time_s"] / past["time_s"],
        "over_low": float("nan") if past is None else past["time_s_low"],
        "over_high": float("nan") if past is None else past["time_s_high"],
    }
    return row | over | {"place": "ladder", "label": _tuned(label, row)}


def _apart(row: dict[str, Any], place: Place) -> dict[str, Any]:
    return row | {"over": "", "place": place, "label": _tuned(short(row["overlap"]), row)}


def _tuned(label: str, row: dict[str, Any]) -> str:
    return f"{label} ({row['tuning']})" if row["tuning"] else label
