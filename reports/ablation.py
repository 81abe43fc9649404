"""What each overlap buys in one setting, from jobs whose variants took turns (par4d IV, axonn-sc24 V-D).

The variants of all jobs of a setting, in the papers' order: each with its time, its paired ratios, and what its steps
tell of what is hidden and what bounds them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from engine.grid import Axis
from engine.result import metrics
from engine.result.ratio import Ratio
from reports.derived import by_row
from reports.frame import SETTING, Frames
from reports.overlaps import FLAGS, NONE, flags, short
from reports.text import number
from reports.variants import Variants

MOST_AXES = 8
_AXES = tuple(Axis)
_KEY = [*SETTING, "tuning", "nodes"]
MEDIANS = (
    *("time_s", "compute_s", "collectives_s", "blocking_s", "exposed_s", "hidden_s", "share_hidden"),
    *("bound_s", "step_by_bound", "processors_s", "prefetch_bytes", "cache_bytes", "cached_blocks"),
)
WORDS = ("bound_by", "shared", "crowded")
RATIOS = ("ratio", "ratio_low", "ratio_high")
GREATEST = "share_of_greatest_gain"
_COLUMNS = [
    *("overlap", "place", "label", "over", *MEDIANS, *WORDS, "time_s_low", "time_s_high"),
    *("jobs", "rounds", "drawn", *RATIOS, *(f"over_{name}" for name in RATIOS)),
]
Place = Literal["ladder", "alone", "other"]
Rounds = dict[int, tuple[float, ...]]
"""A job's index leads to the seconds of each of its rounds."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. first: a job of it; runs: all its jobs; variants: one row each, none where no job ended well.

    variants have the medians over jobs of MEDIANS; time_s_low and time_s_high, the fastest and the slowest round;
    jobs and rounds, how many; ratio, ratio_low and ratio_high, the paired ratio over none; gain, gain_low, gain_high
    and faster, faster_low, faster_high of it; place, label and over, the variant before on the ladder, with over_ratio,
    over_gain and so on; share_of_greatest_gain of the ratio, its _low and _high of the ends of its interval;
    exposed_AXIS and hidden_AXIS; those of WORDS, as most jobs have it; drawn, the newest row of Variants that has a
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
        """This variant has the most flags of those that add one after another; None where there is none but none."""
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
    return [_setting(mine.sort_values("end"), frames.variants) for _, mine in runs.groupby(_KEY, dropna=False)]


def most_exposed(row: "pd.Series[Any]", axes: Sequence[str]) -> tuple[str, float] | None:
    """Return the axis that compute waits for longest, and for how many seconds; None where none was measured."""
    waits = [(row[f"exposed_{axis}"], axis) for axis in axes if row[f"exposed_{axis}"] > 0]
    return (max(waits)[1], max(waits)[0]) if waits else None


def _setting(runs: pd.DataFrame, variants: Variants) -> Setting:
    """The runs are the jobs of one setting, oldest first."""
    ok = runs.index[runs["status"] == "ok"]
    rows = variants.table[variants.table["run"].isin(ok) & variants.table["overlap"].map(flags).notna()]
    rows = rows.sort_values("run", key=lambda run: run.map(ok.get_loc), kind="stable")
    rows = rows.drop_duplicates(["run", "overlap"])
    groups = {str(overlap): mine for overlap, mine in rows.groupby("overlap", sort=False)}
    rounds = {
        overlap: {run: variants.rounds[at] for at, run in zip(mine.index, mine["run"], strict=True)}
        for overlap, mine in groups.items()
    }
    listed: list[dict[str, Any]] = []
    before = ""
    for overlap, place in _placed(list(groups)):
        over = before if place == "ladder" else ""
        ratios = paired(rounds[overlap], rounds.get(NONE, {}) if overlap != NONE else {}, RATIOS)
        ratios |= paired(rounds[overlap], rounds.get(over, {}), [f"over_{name}" for name in RATIOS])
        names = {"overlap": overlap, "place": place, "label": _label(overlap, over), "over": over}
        listed.append(names | _pooled(groups[overlap], variants, rounds[overlap]) | ratios)
        before = overlap if place == "ladder" else before
    table = _with_greatest(_with_gains(pd.DataFrame(listed, columns=_COLUMNS)))
    table, axes = _by_axis(table, rows, variants.axes)
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


def _pooled(rows: pd.DataFrame, variants: Variants, rounds: Rounds) -> dict[str, Any]:
    """Pool one variant over the jobs of a setting, oldest first."""
    times = [time_s for of_job in rounds.values() for time_s in of_job if time_s == time_s]
    drawn = [place for place in rows.index if place in variants.timelines]
    said = {name: rows[name].tolist() for name in WORDS}
    return {
        **{name: rows[name].median() for name in MEDIANS},
        **{name: max(words, key=words.count) for name, words in said.items()},
        "time_s_low": min(times, default=math.nan),
        "time_s_high": max(times, default=math.nan),
        "jobs": len(rows),
        "rounds": len(times),
        "drawn": drawn[-1] if drawn else -1,
    }


def paired(mine: Rounds, base: Rounds, names: Sequence[str]) -> dict[str, float]:
    """Give the ratio and its interval these names; NaN without a round of both, and where nothing is known of it."""
    jobs = [
        [pair for pair in zip(times_s, base.get(run, ()), strict=False) if not any(map(math.isnan, pair))]
        for run, times_s in mine.items()
    ]
    if not any(jobs):
        return dict.fromkeys(names, math.nan)
    found = Ratio.of(metrics.paired(jobs))
    return dict(zip(names, map(number, (found.ratio, found.low, found.high)), strict=True))


def _with_gains(table: pd.DataFrame) -> pd.DataFrame:
    """Add what each ratio saves (gain) and how many times as fast it is (faster), with the ends of the interval."""
    for before in ("", "over_"):
        for name, figure in (("gain", metrics.saved), ("faster", metrics.speed_up)):
            for end, ratio_end in (("", ""), ("_low", "_high"), ("_high", "_low")):
                table[f"{before}{name}{end}"] = by_row(figure, 1.0, table[f"{before}ratio{ratio_end}"])
    return table


def _with_greatest(table: pd.DataFrame) -> pd.DataFrame:
    """Add what each variant saves of what could be saved at most, with the ends of the interval of its ratio."""
    none = table.drop_duplicates("overlap").set_index("overlap").reindex([NONE]).iloc[0]
    bounds = (none["time_s"], table["bound_s"], none["bound_s"])
    for end, ratio_end in (("", ""), ("_low", "_high"), ("_high", "_low")):
        table[f"{GREATEST}{end}"] = by_row(metrics.share_of_greatest_gain, table[f"ratio{ratio_end}"], *bounds)
    return table


def _by_axis(table: pd.DataFrame, rows: pd.DataFrame, axes: pd.DataFrame) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Add exposed_AXIS and hidden_AXIS, medians over jobs in seconds; the second are the axes that ran."""
    mine = axes.merge(rows["overlap"], left_on="variant", right_index=True)
    times = mine.groupby(["overlap", "axis"])[["exposed_s", "hidden_s"]].median()
    names = sorted(
        times.index.unique("axis"), key=lambda axis: (_AXES.index(axis) if axis in _AXES else len(_AXES), axis)
    )
    for kind in ("exposed", "hidden"):
        for axis in names[:MOST_AXES]:
            table[f"{kind}_{axis}"] = [
                times[f"{kind}_s"].get((overlap, axis), math.nan) for overlap in table["overlap"]
            ]
    return table, tuple(names[:MOST_AXES])
