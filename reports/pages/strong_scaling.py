"""Strong scaling: one model on more and more devices, and how long a whole training would take (axonn-sc24 VII-C)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from engine.result import metrics
from reports import text
from reports.columns import columns_of
from reports.derived import by_row
from reports.figures import budget, predicted_scaling, scaling
from reports.figures.scaling import MeasuredSeries
from reports.frames.frame import SERIES, Frames, series_title
from reports.frames.points import fastest, points, with_gains, with_solution
from reports.page import Block, Column, Facts, Figure, Figures, Page, PageSection, Table, nothing_measured
from reports.pages.series import ScalingKind, of_efficiency, of_peak, of_size, published_gains, sections
from reports.pages.study import Study, trainings_of
from reports.plots.canvas import Scale
from reports.read import published
from reports.words import STUDIES

BY = (*SERIES, "parameters", "model", "sequence", "token_budget")
NO_BUDGET = "no number of tokens given"
NO_TIME = "not measured there"


def build(mine: Frames, everything: Frames) -> Page:
    table = with_solution(with_gains(points(mine.runs, BY)))
    made = sections(KIND, table, mine)
    predicted = predicted_scaling.strong(mine, everything.predictions)
    return Page(
        (*(made or (nothing_measured(*STUDIES["strong_scaling"].run),)), *predicted, _published()),
        _headline(table),
        empty=not made,
    )


STUDY = Study("strong_scaling", 2, trainings_of("strong_scaling"), build)


def _headline(table: pd.DataFrame) -> str:
    """Return the series that goes furthest, and what it is relative to."""
    done = table.dropna(subset="efficiency").sort_values("ranks", kind="stable")
    if done.empty:
        return "no point measured"
    last = done.iloc[-1]
    where = f"{last['ranks']:,} devices of {last['system'] or 'unnamed'}"
    same = pd.DataFrame([last[list(BY)]]).merge(done, on=list(BY))
    line = fastest(same)
    if len(line) < 2:
        return f"one device count only, {where}"
    share = text.percent(line.iloc[-1]["efficiency"])
    return f"{share} efficiency on {where}, against {text.plural(int(line.iloc[0]['ranks']), 'device')}"


def _title(row: "pd.Series[Any]") -> str:
    return text.clean(f"{row['model']}, {series_title(row)}", 120)


def _draw(name: str, rows: pd.DataFrame, frames: Frames) -> tuple[Sequence[Block], Sequence[Block]]:
    first = rows.iloc[0]
    solutions = _matching(published.time_to_solution(), first)
    solutions = solutions[solutions["tokens"] == first["token_budget"]]
    times = published.matching(first["system"], {first["model"]}, first["series"])
    series = MeasuredSeries(name, rows, times[times["model"].str.lower() == first["model"].lower()])
    if series.line.empty:
        return (), ()
    stated = replace(series, published=solutions, source="section VII-C")
    figures = [_time(series), scaling.efficiency(stated, "Parallel efficiency")]
    if rows["solution_s"].notna().any():
        figures.append(scaling.solution(stated, "Dotted: ideal.", guides=-1))
    figures += [scaling.flops(series), budget.breakdown(series, as_share=True), budget.memory(series)]
    return (_facts(series), Figures(tuple(figures))), _against(stated)


KIND = ScalingKind(BY, _title, _draw, columns_of("solution_s", missing={"solution_s": NO_BUDGET}))


def _facts(series: MeasuredSeries) -> Facts:
    largest = series.line.iloc[-1]
    known = largest["solution_s"] == largest["solution_s"]
    hfu, mfu, _ = of_peak(series)
    solution = (
        text.duration(largest["solution_s"]) if known else None,
        "to train it whole",
        f"on {text.tokens(largest['token_budget'])}" if known else NO_BUDGET,
    )
    return Facts((*of_size(series), of_efficiency(series), solution, hfu, mfu))


def _matching(table: pd.DataFrame, first: "pd.Series[Any]") -> pd.DataFrame:
    """Return the published points of the same system and model, whatever the case of their names."""
    same = [table[name].str.lower() == first[name].lower() for name in ("system", "model")]
    return table[same[0] & same[1]]


def _time(series: MeasuredSeries) -> Figure:
    """Draw time per batch; where the batch grows with the devices, time per million tokens."""
    one_batch = series.points["batch_tokens"].nunique() == 1
    key, what = ("time_s", "batch") if one_batch else ("per_million_s", "million tokens")
    theirs = scaling.same_batch(series)
    rate = by_row(metrics.rate, theirs["batch_tokens"], theirs["time_s"])
    theirs = theirs.assign(per_million_s=by_row(metrics.time_to_solution, 1e6, rate))
    series = replace(series, published=theirs)
    return scaling.scaling(
        series,
        "time",
        f"Time per {what}",
        [(key, "blue", "measured")],
        Scale(f"seconds per {what}", "log10"),
        text.seconds,
        "Dotted: ideal, from the smallest point." + scaling.published_in(series, key, "implied by the printed flop/s"),
        guides=scaling.ideal(series.line, key, -1),
    )


def _against(series: MeasuredSeries) -> list[Block]:
    """Return the published times beside ours on as many devices."""
    ours = series.line[["ranks", "solution_s", "efficiency"]]
    both = series.published.merge(ours, on="ranks", how="left", suffixes=("_published", ""))
    if both.empty:
        return []
    both["faster"] = by_row(metrics.speed_up, both["solution_s_published"], both["solution_s"])
    columns = columns_of(
        "ranks source solution_s solution_s_published faster efficiency efficiency_published",
        missing={"solution_s": NO_TIME, "faster": NO_TIME, "efficiency": NO_TIME},
        source="Published in",
    )
    return [Table("Against the published figures", columns, both, f"{series.name}-against")]


def _published() -> PageSection:
    table = published.time_to_solution()
    columns = columns_of(
        "source system model ranks tokens",
        Column("Time to solution", "solution_s", text.duration),
        "efficiency note",
        source="Source",
        efficiency="Efficiency, from these times",
    )
    note = "Published figures, not measured here; extrapolated by the paper from the time of an iteration."
    solutions = Table("Published time to solution", columns, table, "published", note)
    return PageSection("Published figures", (solutions, published_gains(published.gains("strong_scaling"))))
