"""The words of an overlap as the engine writes them: oar,ors,oag,cache=4,data."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from engine.grid import Axis
from engine.overlap.flags import ALL
from engine.result import metrics
from reports.derived import by_row
from reports.frames.frame import SETTING, Frames
from reports.frames.sides import ENDS, POOLED, RATIOS, Pool, Sides, with_speed_ups

FLAGS = ("oar", "ors", "oag", "cache", "data")
NONE = "none"


def flags(overlap: str) -> tuple[str, ...] | None:
    """Give the flags of an overlap's text in the papers' order, the cache without its size; None for what isn't one."""
    words = () if overlap == NONE else tuple(word.partition("=")[0] for word in overlap.split(","))
    return tuple(flag for flag in FLAGS if flag in words) if set(words) <= set(FLAGS) else None


def short(overlap: str) -> str:
    """Return an overlap's text as it is typed: "all" for all of its flags."""
    return "all" if overlap == str(ALL) else overlap


MOST_AXES = 8
_AXES = tuple(Axis)
KEY = [*SETTING, "tuning", "nodes"]
MEDIANS = (
    *("time_s", "compute_s", "collectives_s", "blocking_s", "exposed_s", "hidden_s", "share_hidden"),
    *("bound_s", "step_by_bound", "processors_s", "prefetch_bytes", "cache_bytes", "cached_blocks"),
)
WORDS = ("bound_by", "shared", "crowded")
OVER = tuple(f"over_{name}" for name in RATIOS)
GREATEST = "share_of_greatest_gain"
_COLUMNS = [*("overlap", "place", "label", "over", *MEDIANS, *WORDS, *POOLED, "drawn", *OVER)]
Place = Literal["ladder", "alone", "other"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. first: a job of it; runs: all its jobs; variants: one row each, none where no job ended well.

    variants have the medians over jobs of MEDIANS; time_s_low and time_s_high, the fastest and the slowest round;
    jobs and rounds, how many; ratio, ratio_low and ratio_high, the paired ratio over none; gain, gain_low, gain_high
    and faster, faster_low, faster_high of it; place, label and over, the variant before on the ladder, with over_ratio,
    over_gain and so on; share_of_greatest_gain of the ratio, its _low and _high of the ends of its interval;
    exposed_AXIS and hidden_AXIS; those of WORDS, as most jobs have it; drawn, the newest row of Sides that has a
    timeline, or -1.
    """

    first: "pd.Series[Any]"
    runs: pd.DataFrame
    variants: pd.DataFrame
    axes: tuple[str, ...]

    @property
    def jobs(self) -> tuple[int, int]:
        """Say how many jobs ended well, and how many there were."""
        return int((self.runs["status"] == "ok").sum()), len(self.runs)

    @property
    def nodes(self) -> float:
        """Return the number of nodes; NaN where no job ended well."""
        return float(self.first["nodes"])

    def fullest(self) -> "pd.Series[Any] | None":
        """Return the variant with the most flags of those that add one after another; None where only none ran."""
        if self.variants.empty:
            return None
        ladder = self.variants[(self.variants["place"] == "ladder") & (self.variants["overlap"] != NONE)]
        return None if ladder.empty else ladder.iloc[-1]


def settings(frames: Frames) -> list[Setting]:
    """Return every setting of the ablations among the runs, in the order of system, model, devices and grid.

    Jobs on another number of nodes, or with another pace of the flags, are another setting.
    """
    runs = frames.runs[frames.runs["kind"] == "ablation"]
    # A job that failed may know its own node only, so it counts with those of its setting that ended well.
    nodes = runs.assign(nodes=runs["nodes"].where(runs["status"] == "ok")).groupby(SETTING, dropna=False)["nodes"]
    runs = runs.assign(nodes=runs["nodes"].where(runs["status"] == "ok", nodes.transform("first")))
    return [_setting(mine.sort_values("end"), frames.sides) for _, mine in runs.groupby(KEY, dropna=False)]


def most_exposed(row: "pd.Series[Any]", axes: Sequence[str]) -> tuple[str, float] | None:
    """Return the axis that compute waits for longest, and for how many seconds; None where none was measured."""
    waits = [(row[f"exposed_{axis}"], axis) for axis in axes if row[f"exposed_{axis}"] > 0]
    return (max(waits)[1], max(waits)[0]) if waits else None


def _setting(runs: pd.DataFrame, every: Sides) -> Setting:
    """Make the setting of these jobs, oldest first."""
    known = every.table["name"].map(lambda name: flags(str(name))).notna()
    pool = Pool.of(runs, replace(every, table=every.table[known]), "overlap")
    listed: list[dict[str, Any]] = []
    before = ""
    for overlap, place in _placed(list(pool.by_name)):
        over = before if place == "ladder" else ""
        row = {"overlap": overlap, "place": place, "label": _label(overlap, over), "over": over}
        row |= pool.row(overlap, MEDIANS, NONE) | pool.ratio(overlap, over, OVER)
        listed.append(row | _said(pool.by_name[overlap], every))
        before = overlap if place == "ladder" else before
    table = _with_greatest(_with_gains(pd.DataFrame(listed, columns=_COLUMNS)))
    table, axes = _by_axis(table, pool.rows, every.axes)
    return Setting(runs.iloc[-1], runs, table, axes)


def _placed(overlaps: Sequence[str]) -> list[tuple[str, Place]]:
    """Return overlaps in the papers' order: those that lead up to the fullest one, each flag alone, then what else ran.

    Of several with the same flags the first stands for them. A single flag that begins the ladder is listed alone too.
    """
    first: dict[tuple[str, ...], str] = {}
    for overlap in overlaps:
        first.setdefault(flags(overlap) or (), overlap)

    def leading(words: tuple[str, ...]) -> list[tuple[str, ...]]:
        return [words[:length] for length in range(len(words) + 1) if words[:length] in first]

    ladder = leading(max(first, key=lambda words: (len(words), len(leading(words))), default=()))
    alone = [(flag,) for flag in FLAGS if (flag,) in first]
    met = {first[words] for words in (*ladder, *alone)}
    others = sorted((overlap for overlap in overlaps if overlap not in met), key=lambda text: (text.count(","), text))
    return [
        *((first[words], "ladder") for words in ladder),
        *((first[words], "alone") for words in alone),
        *((overlap, "other") for overlap in others),
    ]


def _label(overlap: str, over: str) -> str:
    """Say what the bar of a variant is called: the flags that it adds, where it stands over another one."""
    before = flags(over) if over else None
    if before is None:
        return short(overlap)
    return "+ " + " ".join(word for word in overlap.split(",") if word.partition("=")[0] not in before)


def _said(rows: pd.DataFrame, every: Sides) -> dict[str, Any]:
    """Return what most jobs say, oldest first, and the newest side that has a timeline, or -1."""
    said = {name: rows[name].tolist() for name in WORDS}
    drawn = [at for at in rows.index if every.timeline(at) is not None]
    return {name: max(words, key=words.count) for name, words in said.items()} | {"drawn": drawn[-1] if drawn else -1}


def _with_gains(table: pd.DataFrame) -> pd.DataFrame:
    """Add what each ratio saves (gain) and how many times as fast it is (faster), with the ends of the interval."""
    for before in ("", "over_"):
        for end, ratio_end in ENDS:
            table[f"{before}gain{end}"] = by_row(metrics.saved, 1.0, table[f"{before}ratio{ratio_end}"])
        with_speed_ups(table, before)
    return table


def _with_greatest(table: pd.DataFrame) -> pd.DataFrame:
    """Add what each variant saves of what could be saved at most, with the ends of the interval of its ratio."""
    none = table.drop_duplicates("overlap").set_index("overlap").reindex([NONE]).iloc[0]
    bounds = (none["time_s"], table["bound_s"], none["bound_s"])
    for end, ratio_end in ENDS:
        table[f"{GREATEST}{end}"] = by_row(metrics.share_of_greatest_gain, table[f"ratio{ratio_end}"], *bounds)
    return table


def _by_axis(table: pd.DataFrame, rows: pd.DataFrame, axes: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Add exposed_AXIS and hidden_AXIS, medians over jobs in seconds; the second are the axes that ran."""
    mine = axes.merge(rows["name"], left_on="side", right_index=True)
    times = mine.groupby(["name", "axis"])[["exposed_s", "hidden_s"]].median()
    names = sorted(
        times.index.unique("axis"), key=lambda axis: (_AXES.index(axis) if axis in _AXES else len(_AXES), axis)
    )
    for kind in ("exposed", "hidden"):
        for axis in names[:MOST_AXES]:
            table[f"{kind}_{axis}"] = [
                times[f"{kind}_s"].get((overlap, axis), math.nan) for overlap in table["overlap"]
            ]
    return table, tuple(names[:MOST_AXES])
