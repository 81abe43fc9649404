"""Where time, memory and data go at each point of a series, as stacked bars."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pandas as pd

from engine.grid import Axis
from engine.result import metrics
from reports import text
from reports.derived import by_row
from reports.figures.scaling import MeasuredSeries, at, left_out, spread_out
from reports.frames.frame import SETTING, Frames
from reports.frames.overlaps import NONE, short
from reports.page import Figure
from reports.plots.rows import Bars, Row, stacked

MOST_BARS = 12
MOST_OVERLAPS = 4
_COLOURS = dict(zip(map(str, Axis), ("blue", "red", "green", "purple"), strict=False))


def breakdown(series: MeasuredSeries, remark: str = "", *, as_share: bool = False) -> Figure:
    """Draw compute and exposed communication of every overlap that ran in a layout (axonn-sc24 Fig. 7).

    as_share: in per cent of the iteration instead of seconds.
    """
    line = spread_out(series.line, MOST_BARS)
    rows, bars = _by_overlap(series, line)
    step_s = rows["compute_s"] + rows["collectives_s"]

    def drawn(key: str) -> list[float]:
        shares = 100 * by_row(metrics.share_of_step, rows[key], step_s)
        return list((shares if as_share else rows[key]).tolist())

    parts = [Bars("compute", drawn("compute_s"), "blue"), Bars("exposed communication", drawn("collectives_s"), "red")]
    unit = "% of an iteration" if as_share else "seconds per iteration"
    several = any(bar.heading for bar in bars)
    bars = [replace(bar, mark=mark) for bar, mark in zip(bars, drawn("bound_s"), strict=True)]
    caption = "Exposed: compute stands still for it, waiting for the slowest rank included."
    if rows["bound_s"].notna().any():
        caption += " The mark: what bounds a step, which none of the same work can beat."
    if several:
        caption += (
            " Beside the bars: the part of the time that is saved over the same layout without overlap, by medians "
            "over jobs of their own, in grey where it may be chance: the jobs' times meet, or there is one only."
        )
    return _bars(
        series,
        "breakdown",
        "Where the time goes",
        parts,
        rows,
        f"{unit} on rank 0",
        caption + remark + left_out(line, series.line),
        {"compute_s": "compute", "collectives_s": "exposed", "bound_s": "bound"},
        text.seconds,
        bars=bars,
        columns=("saved",) if several else (),
    )


def _by_overlap(series: MeasuredSeries, line: pd.DataFrame) -> tuple[pd.DataFrame, list[Row]]:
    """Return the measured overlaps of the layout of each point of the line, none of them first, and a bar for each."""
    places = line[SETTING].assign(place=range(len(line)))
    rows = places.merge(series.points[series.points["jobs"] > 0], on=SETTING).sort_values("time_s")
    rows = rows.drop_duplicates(["place", "overlap"]).assign(hides=rows["overlap"] != NONE)
    rows = rows.sort_values(["place", "hides", "overlap"]).groupby("place").head(MOST_OVERLAPS).reset_index(drop=True)
    first = ~rows.duplicated("place")
    if first.all():
        return rows, [Row(f"{at(point)} · {point['model']}") for _, point in rows.iterrows()]
    return rows, [
        Row(
            short(point["overlap"]) or "not recorded",
            heading=f"{at(point)} · {text.clean(point['model'], 22)}" if heads else "",
            notes=(text.gain(point["gain_none"]) if point["gain_none"] == point["gain_none"] else "",),
            pale=() if point["gain_is_sure"] else (0,),
        )
        for heads, (_, point) in zip(first, rows.iterrows(), strict=True)
    ]


def memory(series: MeasuredSeries) -> Figure:
    chosen = spread_out(series.line, MOST_BARS)
    parts = [Bars("fullest rank", (chosen["memory_max"] / 2**30).tolist(), "green")]
    return _bars(
        series,
        "memory",
        "Peak memory",
        parts,
        chosen,
        "GiB per rank",
        "The emptiest rank is in the table below." + left_out(chosen, series.line),
        {"memory_max": "fullest rank", "memory_min": "emptiest rank"},
        text.memory,
    )


def traffic(series: MeasuredSeries, frames: Frames) -> Figure:
    """Draw bytes that rank 0 hands to collectives in an iteration, by axis of the grid."""
    chosen = spread_out(series.line, MOST_BARS)
    mine = frames.collectives[frames.collectives["run"].isin(chosen["newest"])]
    sums = mine.pivot_table(index="run", columns="axis", values="bytes", aggfunc="sum", fill_value=0.0)
    sums = sums.reindex(chosen["newest"])
    sums[chosen["ranks"].to_numpy() == 1] = 0.0  # one device sends nothing; for more, nothing recorded is not measured
    factor, letter = text.prefix(float(sums.max().max()) if sums.size else 1.0)
    known = [axis for axis in _COLOURS if axis in sums]
    parts = [Bars(axis, (sums[axis] / factor).tolist(), _COLOURS[axis]) for axis in known]
    others = [axis for axis in sums if axis not in _COLOURS]
    if others:
        parts.append(Bars("other", (sums[others].sum(axis=1, min_count=1) / factor).tolist(), "gold"))
    if not parts:
        parts.append(Bars("none", [0.0 if ranks == 1 else math.nan for ranks in chosen["ranks"]], "muted"))
    table = chosen.assign(**{f"bytes_{axis}": sums[axis].to_numpy() for axis in known})
    return _bars(
        series,
        "traffic",
        "Data in collectives",
        parts,
        table,
        f"{letter}B per iteration on rank 0, by grid axis",
        "Bytes of the input buffers." + left_out(chosen, series.line),
        {f"bytes_{axis}": axis for axis in known},
        text.size,
    )


def _bars(
    series: MeasuredSeries,
    suffix: str,
    title: str,
    parts: Sequence[Bars],
    chosen: pd.DataFrame,
    axis: str,
    caption: str,
    said: Mapping[str, str],
    write: Callable[[float], str],
    bars: Sequence[Row] = (),
    columns: Sequence[str] = (),
) -> Figure:
    """Draw a bar for each row of chosen. said: the numbers to put into words, and what each is."""
    name = f"{series.name}-{suffix}"
    words = [
        f"{at(point)}, overlap {point['overlap'] or 'unknown'}: "
        + ", ".join(f"{what} {write(point[key])}" for key, what in said.items() if point[key] == point[key])
        for _, point in chosen.iterrows()
    ]
    bars = bars or [Row(f"{at(point)} · {point['model']}") for _, point in chosen.iterrows()]
    description = ". ".join(words) or "Not measured."
    drawing = stacked(parts, bars, axis, columns=columns, mark="bound")
    return Figure(title, caption, drawing, chosen[["ranks", "model", "grid", "overlap", *said]], name, description)
