"""Weak scaling: the same work per device on more and more of them (axonn-sc24 Table III, Fig. 6, Fig. 7, Fig. 8), and
how long a whole training takes (axonn-ipdps22 Fig. 9).
"""

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd

from engine.result import metrics
from engine.result.judges.peers import FEWEST_JOBS
from reports import text
from reports.columns import NOT_PRINTED, columns_of
from reports.derived import by_row
from reports.figures import budget, predicted_scaling, scaling
from reports.figures.scaling import MeasuredSeries
from reports.frames.frame import SERIES, Frames, series_title
from reports.frames.points import points, with_gains, with_solution
from reports.page import Block, Column, Facts, Figure, Figures, Page, PageSection, Table, flops_column, nothing_measured
from reports.pages.series import ScalingKind, of_efficiency, of_peak, of_size, published_gains, sections
from reports.pages.study import Study, trainings_of
from reports.read import published
from reports.words import NOTES, STUDIES

NOT_OURS = "Published figures, not measured here."


def build(mine: Frames, everything: Frames) -> Page:
    table = with_solution(with_gains(points(mine.runs)))
    made = sections(KIND, table, mine)
    predicted = predicted_scaling.weak(mine, everything.predictions)
    shown = (*(made or (nothing_measured(*STUDIES["weak_scaling"].run),)), *predicted, _published())
    return Page(shown, _headline(table), empty=not made)


STUDY = Study("weak_scaling", 1, trainings_of("weak_scaling"), build)


def _headline(table: pd.DataFrame) -> str:
    done = table.dropna(subset="hardware_flops_per_s")
    if done.empty:
        return "no point measured"
    best = done.sort_values("hardware_flops_per_s").iloc[-1]
    where = f"{text.plural(int(best['ranks']), 'device')} of {best['system'] or 'unnamed'}"
    return f"{text.flops(best['hardware_flops_per_s'])} on {where}, recomputation counted"


def _draw(name: str, rows: pd.DataFrame, frames: Frames) -> tuple[Sequence[Block], Sequence[Block]]:
    first = rows.iloc[0]
    series = MeasuredSeries(name, rows, published.matching(first["system"], set(rows["model"]), first["series"]))
    if series.line.empty:
        return (), ()
    figures = (
        scaling.time(series),
        scaling.flops(series),
        *_days(series),
        scaling.peak(series),
        scaling.efficiency(series, "Weak-scaling efficiency"),
        scaling.loss(series, frames),
        budget.memory(series),
        budget.traffic(series, frames),
        budget.breakdown(series, _figure_7(series)),
    )
    largest = Facts((*of_size(series), *of_peak(series), of_efficiency(series)))
    return (largest, Figures(figures)), (*_against(series), *_against_ranges(series))


KIND = ScalingKind(tuple(SERIES), series_title, _draw)


def _days(series: MeasuredSeries) -> list[Figure]:
    """Draw the time that the series' number of tokens takes (axonn-ipdps22 Fig. 9); nothing for one without."""
    timed = series.points.dropna(subset="solution_s")
    if timed.empty:
        return []
    level = "Level is ideal where parameters grow with the devices, and tokens and batch don't."
    return [scaling.solution(replace(series, points=timed), level)]


def _figure_7(series: MeasuredSeries) -> str:
    gains = published.gains("weak_scaling")
    of_overlap = gains[gains["over"] == "none"]
    theirs = series.published.merge(of_overlap, on=["paper", "system", "model"])
    return "".join(
        f" Published ({row['source']}): overlap saves {100 * row['value']:g} % for {row['model']} on "
        f"{int(row['devices']):,} devices."
        for _, row in theirs.iterrows()
    )


def _against(series: MeasuredSeries) -> list[Block]:
    """Ours beside the published point of the same model on as many devices."""
    ours = series.line.assign(model_key=series.line["model"].str.lower())
    theirs = series.published.assign(model_key=series.published["model"].str.lower())
    both = ours.merge(theirs, on=["model_key", "ranks"], suffixes=("", "_published"))
    if both.empty:
        return []
    both["time_s_published"] = both["time_s_published"].where(both["batch_tokens"] == both["batch_tokens_published"])
    both["ratio"] = by_row(metrics.over_published, both["hfu"], both["hfu_published"])
    columns = columns_of(
        "ranks model published_in time_s time_s_published",
        flops_column("Sustained", "hardware_flops_per_s", both),
        flops_column("Published", "hardware_flops_per_s_published", both, missing=NOT_PRINTED),
        "hfu hfu_published of_empirical of_empirical_published",
        Column("HFU, ours over published", "ratio", lambda value: f"{value:.2f}", figure="over_published"),
        missing={"time_s_published": "of another batch"},
        published_in="Published in",
        time_s_published="Published time (implied)",
    )
    return [Table("Against the published figures", columns, both, f"{series.name}-against", _jobs_wanted(both))]


def _jobs_wanted(points: pd.DataFrame) -> str:
    """Say how many jobs a verdict on the points takes beside those that there are."""
    lacking = points.loc[points["jobs"] < FEWEST_JOBS, "ranks"]
    said = f"A verdict takes {FEWEST_JOBS} jobs of a point or more (--repeat), as its interval is over jobs"
    where = f": there are fewer on {', '.join(f'{int(ranks):,}' for ranks in lacking)} devices"
    return f"{said}{where if len(lacking) else ''}."


def _against_ranges(series: MeasuredSeries) -> list[Block]:
    """Return ours beside every framework of which the range of a series with that point is printed."""
    theirs = published.weak_scaling_ranges()
    here = theirs["system"].str.lower() == series.points["system"].iloc[0].lower()
    theirs = _as_words(theirs[here]).drop(columns="system")
    ours = series.line[["ranks", "model", "time_s", "hfu", "batch_tokens", "token_budget", "solution_s"]]
    both = theirs.assign(model=theirs["model"].str.lower()).merge(
        ours.assign(model=ours["model"].str.lower()), on=["model", "ranks"], suffixes=("_published", "")
    )
    if both.empty:
        return []
    same_batch = both["batch_tokens"] == both["batch_tokens_published"]
    both["times"] = both["times"].where(same_batch, "")
    timed = same_batch & both["solution_s"].notna()
    both = _with_days(both, timed)
    columns = columns_of(
        "ranks model framework time_s",
        _range("Published time (implied)", "times", "of another batch"),
        *(_days_columns() if timed.any() else ()),
        "hfu",
        _range("Published HFU", "shares"),
        "source",
        published_in="Published in",
    )
    note = f"{NOTES['ranges']} {_said_to_be_saved(series)}" if timed.any() else NOTES["ranges"]
    return [Table("Against published ranges", columns, both, f"{series.name}-ranges", note)]


def _with_days(both: pd.DataFrame, timed: "pd.Series[bool]") -> pd.DataFrame:
    """Add the days of the same tokens by the published times, and those that ours saves, where both are known."""
    found = {}
    for end in ("low", "high"):
        theirs = both["token_budget"] / both["batch_tokens_published"] * both[f"time_s_{end}"] / text.DAY
        found[f"days_{end}"] = theirs.where(timed)
        found[f"saved_{end}"] = found[f"days_{end}"] - both["solution_s"] / text.DAY
    both = both.assign(**found, days_ours=both["solution_s"] / text.DAY)
    spans = {name: zip(both[f"{name}_low"], both[f"{name}_high"], strict=True) for name in ("days", "saved")}
    return both.assign(
        **{
            name: [f"{low:.3g} to {high:.3g} days" if low == low else "" for low, high in pairs]
            for name, pairs in spans.items()
        }
    )


def _days_columns() -> tuple[Column, ...]:
    theirs, ours = _range("Published, implied", "days", "of another batch"), _range("Ours saves", "saved", "not known")
    days = Column("Days to solution", "days_ours", lambda value: f"{value:.1f}", figure="time_to_solution")
    return (days, theirs, ours)


def _said_to_be_saved(series: MeasuredSeries) -> str:
    """Say what papers print of days saved on the series' system."""
    system = series.points["system"].iloc[0].lower()
    return " ".join(
        f"Printed: {row['text']} saved by {row['framework']} over {row['over']} for {row['model']} ({row['source']})."
        for _, row in published.days_saved().iterrows()
        if row["system"].lower() == system
    )


def _as_words(ranges: pd.DataFrame) -> pd.DataFrame:
    shares, times = ((ranges[f"{key}_low"], ranges[f"{key}_high"]) for key in ("hfu", "time_s"))
    return ranges.assign(
        shares=[f"{100 * low:g} to {100 * high:g} %" for low, high in zip(*shares, strict=True)],
        times=[f"{text.seconds(low)} to {text.seconds(high)}" for low, high in zip(*times, strict=True)],
    )


def _range(title: str, key: str, missing: str = NOT_PRINTED) -> Column:
    return Column(title, key, numeric=False, missing=missing)


def _published() -> PageSection:
    table = published.weak_scaling()
    columns = columns_of(
        "published_in system framework ranks model",
        flops_column("Sustained", "hardware_flops_per_s", table, missing=NOT_PRINTED),
        Column("Of advertised peak (HFU)", "hfu", text.percent, missing=NOT_PRINTED),
        Column("Of empirical peak", "of_empirical", text.percent, missing=NOT_PRINTED),
        "time_s",
        Column("Tolerance", "tolerance", text.percent),
        missing={"time_s": "not printed"},
        time_s="Time per batch, implied",
    )
    note = (
        f"{NOT_OURS} Batches have 16.8 M tokens in axonn-sc24 and 4 M in par4d. Flop/s count recomputation, so that "
        "shares are HFU; MFU is about 0.75 of it. Times follow from the printed flop/s or HFU and the formula of "
        "Narayanan et al. with a vocabulary of 51,200."
    )
    weak = Table("Published weak scaling", columns, table, "published", note)
    columns = columns_of(
        "source system framework ranks model",
        _range("Of advertised peak (HFU)", "shares"),
        _range("Time per batch, implied", "times"),
        source="Source",
    )
    table = _as_words(published.weak_scaling_ranges())
    ranges = Table("Published ranges", columns, table, "published-ranges", f"{NOT_OURS} {NOTES['ranges']}")
    return PageSection("Published figures", (weak, ranges, published_gains(published.gains("weak_scaling"))))
