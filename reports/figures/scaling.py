"""The figures of a scaling series, weak or strong: ours beside the published ones, on a log2 scale of devices."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from reports import text
from reports.frames.frame import Frames
from reports.frames.jobs import each_once
from reports.frames.points import fastest
from reports.page import Figure
from reports.plots.canvas import Scale, plain
from reports.plots.lines import Line, lines
from reports.read.peaks import ABOVE

DEVICES = Scale("devices", "log2", write=text.count)
MOST_CURVES = 6
MOST_LOST = 6
MOST_POINTS = 60
_CURVES = ("blue", "red", "green", "purple", "gold", "sky")
_MARKS = {"axonn-sc24": "o", "par4d": "s"}


@dataclass(frozen=True, slots=True)
class MeasuredSeries:
    """Points of a series on one machine, and published ones beside them (possibly none), with their source."""

    name: str
    points: pd.DataFrame
    published: pd.DataFrame
    source: str = "Table III"

    @property
    def line(self) -> pd.DataFrame:
        return fastest(self.points)


def time(series: MeasuredSeries) -> Figure:
    """Draw the time per batch (axonn-sc24 Fig. 6), without published times of other batches: they don't compare."""
    series = replace(series, published=same_batch(series))
    return scaling(
        series,
        "time",
        "Time per batch",
        [("time_s", "blue", "measured")],
        Scale("seconds per batch", from_zero=True),
        text.seconds,
        "Level is ideal. Bars span the jobs of a point."
        + published_in(series, "time_s", "its times are implied by the printed flop/s"),
    )


def flops(series: MeasuredSeries) -> Figure:
    """Draw sustained flop/s (axonn-sc24 Fig. 8)."""
    values = [series.line["hardware_flops_per_s"].min(), series.published["hardware_flops_per_s"].min()]
    factor, letter = text.prefix(min((value for value in values if value == value), default=1.0))
    scale = Scale(f"{letter}flop/s, hardware", "log10", write=lambda value: plain(value / factor))
    return scaling(
        series,
        "flops",
        "Sustained flop/s",
        [("hardware_flops_per_s", "blue", "measured")],
        scale,
        text.flops,
        "Recomputation counted. Dotted: linear from the smallest point." + published_in(series, "hardware_flops_per_s"),
        guides=ideal(series.line, "hardware_flops_per_s", 1),
    )


def peak(series: MeasuredSeries) -> Figure:
    """Draw percentages of the advertised and of the empirical peak (axonn-sc24 Table III)."""
    measures = [("of_empirical", "red", "of empirical"), ("hfu", "blue", "HFU"), ("mfu", "green", "MFU")]
    scale = Scale("% of peak", from_zero=True, write=lambda value: f"{100 * value:.0f}")
    return scaling(
        series,
        "peak",
        "Share of the peak",
        measures,
        scale,
        text.percent,
        "HFU and MFU are of the advertised peak; HFU counts recomputation, MFU does not."
        + _empirical(series)
        + published_in(series, "hfu"),
    )


def _empirical(series: MeasuredSeries) -> str:
    """Return the part of a caption that says which empirical peak it is, and whether it can be right."""
    known = each_once(series.line["empirical_from"])
    said = f" Empirical: {known}." if known else ""
    if (series.line["of_empirical"] > 1).any():
        said += ABOVE
    return said


def efficiency(series: MeasuredSeries, title: str) -> Figure:
    """Draw efficiency relative to the smallest point (axonn-sc24 sections VII-A and VII-C)."""
    line = series.line
    base = int(line["ranks"].min())
    scale = Scale("% efficiency", from_zero=True, write=lambda value: f"{100 * value:.0f}")
    said = f"Model flop/s per device, relative to {text.plural(base, 'device')}, which are 100 % by definition."
    if (line["efficiency"] > 1).any():
        said += " More than 100 %: a device did less at the smallest point than at a larger one."
    return scaling(
        series,
        "efficiency",
        title,
        [("efficiency", "blue", "measured")],
        scale,
        text.percent,
        said + published_in(series, "efficiency", "relative to its own smallest"),
    )


def solution(series: MeasuredSeries, caption: str, *, guides: int | None = None) -> Figure:
    """Draw time to solution (axonn-sc24 Fig. 9, axonn-ipdps22 Fig. 9 and 11). guides: the power of an ideal line."""
    unit, length = ("days", text.DAY) if series.line["solution_s"].min() > 2 * text.DAY else ("hours", 3600.0)
    key = f"solution_{unit}"
    ours = series.points.assign(**{key: series.points["solution_s"] / length})
    theirs = series.published
    theirs = theirs.assign(**{key: theirs["solution_s"] / length if "solution_s" in theirs else math.nan})
    series = replace(series, points=ours, published=theirs)
    scale = Scale(f"{unit} to train on {text.tokens(ours['token_budget'].iloc[0])}", "log10")
    if guides is None:
        scale = replace(scale, spacing="linear", from_zero=True)
    return scaling(
        series,
        "solution",
        "Time to solution",
        [(key, "blue", "measured")],
        scale,
        lambda value: text.duration(value * length),
        f"Extrapolated from the time per batch. {caption}{published_in(series, key)}",
        guides=() if guides is None else ideal(series.line, key, guides),
    )


def loss(series: MeasuredSeries, frames: Frames) -> Figure:
    """Draw training loss of the newest job of each point."""
    chosen = spread_out(series.line, MOST_CURVES)
    steps = frames.iterations[frames.iterations["run"].isin(chosen["newest"])]
    curves = []
    for colour, (_, point) in zip(_CURVES, chosen.iterrows(), strict=False):
        mine = steps[steps["run"] == point["newest"]]
        curves.append(Line.of(mine, "index", "loss", colour, at(point), kind="curve"))
    table = steps.merge(chosen[["newest", "ranks", "model"]], left_on="run", right_on="newest")
    name, title = f"{series.name}-loss", "Training loss"
    caption = "Newest job of each point, every iteration, by devices." + left_out(chosen, series.line)
    drawing = lines(curves, Scale("iteration"), Scale(unit_of_loss(series.line)))
    data = table[["ranks", "model", "index", "time_s", "loss", "grad_norm", "warmup"]]
    return Figure(title, caption, drawing, data, name, _describe(curves, "iteration", text.significant))


def unit_of_loss(runs: pd.DataFrame) -> str:
    """Say what the losses of these are in: those of images, of which no tokens are known, have no unit."""
    return "mean loss" if runs["images_per_s"].notna().any() else "nats per token"


def ideal(line: pd.DataFrame, key: str, power: int) -> list[Line]:
    """Return a dotted line from the smallest point on: in proportion to the devices (power 1), or against it (-1)."""
    if len(line) < 2:
        return []
    base = line.iloc[0]
    ends = [base["ranks"], line["ranks"].max()]
    return [Line(ends, [base[key] * (ranks / base["ranks"]) ** power for ranks in ends], "muted", kind="guide")]


def same_batch(series: MeasuredSeries) -> pd.DataFrame:
    """Return the published points whose batch has as many tokens as one of ours."""
    return series.published[series.published["batch_tokens"].isin(series.points["batch_tokens"])]


def spread_out(table: pd.DataFrame, most: int) -> pd.DataFrame:
    """Choose rows evenly, at most so many, the first and the last among them."""
    if len(table) <= most:
        return table
    return table.iloc[[round(i * (len(table) - 1) / (most - 1)) for i in range(most)]]


def scaling(
    series: MeasuredSeries,
    suffix: str,
    title: str,
    measures: Sequence[tuple[str, str, str]],
    scale: Scale,
    write: Callable[[float], str],
    caption: str,
    guides: Sequence[Line] = (),
) -> Figure:
    """Draw lines over devices, each a key, a colour and a label, and guides below; write says a value in words."""
    line, name = spread_out(series.line, MOST_POINTS), f"{series.name}-{suffix}"
    drawn = list(guides)
    described = []
    single = len(measures) == 1
    for key, colour, label in measures:
        for paper, points in series.published.groupby("paper", sort=False):
            if key in points and points[key].notna().any():
                hue = {"axonn-sc24": "red", "par4d": "purple"}.get(str(paper), "muted") if single else colour
                mark = _MARKS.get(str(paper), "^")
                past = Line.of(points, "ranks", key, hue, str(paper) if single else "", mark=mark, kind="published")
                drawn.append(past)
                described.append(Line(past.x, past.y, hue, f"{paper}, {label}"))
        ours = Line.of(line, "ranks", key, colour, label)
        drawn.append(ours.between(line, f"{key}_low", f"{key}_high") if f"{key}_low" in line else ours)
        described.append(drawn[-1])
    keys = [key for key, _, _ in measures]
    columns = ["ranks", "model", *keys]
    measured = line[[*columns, "jobs"]].assign(origin="measured")
    theirs = series.published.filter(columns).assign(origin=series.published["paper"])
    data = pd.concat([measured, theirs], ignore_index=True)
    caption += left_out(line, series.line) + lost(series)
    return Figure(title, caption, lines(drawn, DEVICES, scale), data, name, _describe(described, "devices", write))


def at(point: "pd.Series[Any]") -> str:
    return f"{int(point['ranks']):,}"


def published_in(series: MeasuredSeries, key: str, remark: str = "") -> str:
    """Return the part of a caption that names what is drawn dashed."""
    papers = list(series.published.loc[series.published[key].notna(), "paper"].unique())
    if not papers:
        return ""
    shapes = " (circles) and ".join(papers) + " (squares)" if len(papers) > 1 else papers[0]
    return f" Dashed: published, {shapes} {series.source}{'; ' + remark if remark else ''}."


def left_out(chosen: pd.DataFrame, of: pd.DataFrame) -> str:
    """Return the part of a caption that says how many points are not drawn."""
    return f" {len(chosen)} of {len(of)} points drawn; the tables have all." if len(chosen) < len(of) else ""


def lost(series: MeasuredSeries) -> str:
    """Return the part of a caption that says which device counts have no point, as all their jobs failed."""
    ended = series.points.groupby("ranks")["jobs"].sum()
    counts = [text.count(ranks) for ranks in ended.index[ended == 0]]
    return f" No point where every job failed: on {', '.join(counts[:MOST_LOST])} devices." if counts else ""


def _describe(drawn: Sequence[Line], noun: str, write: Callable[[float], str]) -> str:
    """Return the chart in words: where each line begins and ends."""
    said = []
    for line in drawn:
        kept = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y == y]
        if kept:
            (first, start), (last, end) = kept[0], kept[-1]
            said.append(
                f"{line.label}: {write(start)} at {first:,} {noun} to {write(end)} at {last:,}, {len(kept)} points"
            )
    return ". ".join(said) + "." if said else "Not measured."
