"""Weak scaling: the same work per device on more and more of them (axonn-sc24 Table III, Fig. 6, Fig. 8)."""

import pandas as pd

from reports import published, scaling, text
from reports.frame import SERIES, Frames, series_title
from reports.page import Block, Column, Facts, Figures, Page, Section, Table, flops_column, nothing_measured
from reports.points import points
from reports.provenance import failures, provenance
from reports.scaling import Series
from reports.study import Study

MOST_SERIES = 12
NO_PEAK = "no peak known"
TITLE = "Weak scaling"
SUMMARY = (
    "Time per batch, sustained flop/s and share of the peak as devices and model grow together, beside the published "
    "series."
)
LEAD = (
    "Model and machine grow together, so the time per batch would ideally stay level. The reported time of a job is "
    "the mean over its iterations after the warm-up; a point is the median of its jobs. Figures draw the fastest "
    "layout at each device count. HFU counts the recomputation of activation checkpointing as work, as the published "
    "figures do; MFU counts the model's own flops only and is about 0.75 of HFU under full recomputation."
)
RUN = "reframe -c suites/weak_scaling.py --system local"


def build(mine: Frames, everything: Frames) -> Page:
    """The page; with no runs it says what to run."""
    table = points(mine.runs)
    groups = [rows for _, rows in table.groupby(SERIES, dropna=False, sort=True)]
    sections: list[Section] = []
    if not groups:
        sections.append(nothing_measured(RUN))
    titles = [series_title(rows.iloc[0]) for rows in groups[:MOST_SERIES]]
    for name, title, rows in zip(text.slugs(titles), titles, groups, strict=False):
        sections.append(_series(name, title, rows, mine))
    if len(groups) > MOST_SERIES:
        rest = pd.concat(groups[MOST_SERIES:], ignore_index=True)
        note = f"Figures are drawn for the first {MOST_SERIES} series."
        table_of_rest = _points_table(rest, "more_series", note, with_series=True)
        failed = failures(_of(mine.runs, rest), "more_series")
        sections.append(Section("Further series", (table_of_rest, *failed)))
    if groups:
        sections.append(_details(table, mine))
    sections.append(_published())
    return Page(TITLE, LEAD, tuple(sections), _headline(table), empty=not groups)


STUDY = Study("weak_scaling", TITLE, SUMMARY, 1, lambda runs: runs["study"] == "weak_scaling", build)


def _of(runs: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """The runs that belong to the series of these points."""
    keys = pd.MultiIndex.from_frame(runs[SERIES])
    return runs[keys.isin(pd.MultiIndex.from_frame(rows[SERIES]))]


def _headline(table: pd.DataFrame) -> str:
    done = table.dropna(subset="hardware_flops_per_s")
    if done.empty:
        return "no point measured"
    best = done.sort_values("hardware_flops_per_s").iloc[-1]
    return f"{text.flops(best['hardware_flops_per_s'])} on {best['ranks']:,} devices of {best['system'] or 'unnamed'}"


def _series(name: str, title: str, rows: pd.DataFrame, frames: Frames) -> Section:
    first = rows.iloc[0]
    series = Series(name, rows, published.matching(first["system"], set(rows["model"]), first["series"]))
    blocks: list[Block] = []
    if len(series.line):
        blocks += [_facts(series), Figures((scaling.time(series), scaling.flops(series), scaling.peak(series),
            scaling.efficiency(series), scaling.loss(series, frames), scaling.breakdown(series),
            scaling.memory(series), scaling.traffic(series, frames)))]  # fmt: skip
    blocks += [_points_table(rows, name), *failures(_of(frames.runs, rows), name), *_against(series)]
    return Section(title, tuple(blocks), f"series-{name}")


def _facts(series: Series) -> Facts:
    largest = series.line.iloc[-1]

    def share(key: str) -> str | None:
        return text.percent(largest[key]) if largest[key] == largest[key] else None

    of_peak = "of the advertised peak" if share("hfu") else "no advertised peak is known"
    of_best = "recomputation counted" if share("of_empirical") else "no empirical peak is known"
    return Facts(
        (
            (f"{largest['ranks']:,}", "devices", f"{largest['model']} on grid {largest['grid']}"),
            (text.seconds(largest["time_s"]), "per batch", text.plural(int(largest["jobs"]), "job")),
            (text.flops(largest["hardware_flops_per_s"]), "sustained", "recomputation counted"),
            (share("hfu"), "HFU", of_peak),
            (share("mfu"), "MFU", of_peak),
            (share("of_empirical"), "of empirical peak", of_best),
            (share("efficiency"), "efficiency", f"against {text.plural(int(series.line['ranks'].min()), 'device')}"),
        )
    )


def _points_table(rows: pd.DataFrame, name: str, note: str = "", *, with_series: bool = False) -> Table:
    data = rows.assign(
        only_failed=rows["jobs"] == 0,
        spread=[
            f"{text.significant(low)} to {text.significant(high)}" if jobs > 1 else "one job" if jobs else ""
            for low, high, jobs in zip(rows["time_s_low"], rows["time_s_high"], rows["jobs"], strict=True)
        ],
        share=[
            f"{jobs} of {jobs + failed}" if failed else str(jobs)
            for jobs, failed in zip(rows["jobs"], rows["failed"], strict=True)
        ],
    )
    columns = [
        Column("Devices", "ranks", text.count),
        Column("Model", "model", numeric=False),
        Column("Grid", "grid", numeric=False),
        Column("Batch", "batch_size", numeric=False, missing="not recorded"),
        Column("Jobs", "share", numeric=False),
        Column("Time per batch", "time_s", text.seconds),
        Column("Range, s", "spread", numeric=False),
        flops_column("Sustained", "hardware_flops_per_s", rows),
        Column("HFU", "hfu", text.percent, missing=NO_PEAK),
        Column("MFU", "mfu", text.percent, missing=NO_PEAK),
        Column("Of empirical peak", "of_empirical", text.percent, missing=NO_PEAK),
        Column("Efficiency", "efficiency", text.percent),
        Column("Tokens/s", "tokens_per_s", lambda value: text.si(value, "")),
    ]
    if with_series:
        columns = [Column(name.title(), name, numeric=False, missing="") for name in SERIES] + columns
    if (rows["commits"] > 1).any():
        columns.append(Column("Commits", "commits", text.count))
    said = f"{note} The batch is in sequences; time and rates are medians over jobs.".strip()
    return Table("Measured points", tuple(columns), data, f"{name}-points", said, failed="only_failed")


def _against(series: Series) -> list[Block]:
    """Ours beside the published point of the same model on as many devices."""
    ours = series.line.assign(model_key=series.line["model"].str.lower())
    theirs = series.published.assign(model_key=series.published["model"].str.lower())
    both = ours.merge(theirs, on=["model_key", "ranks"], suffixes=("", "_published"))
    if both.empty:
        return []
    both["time_s_published"] = both["time_s_published"].where(both["batch_tokens"] == both["batch_tokens_published"])
    both["ratio"] = both["hfu"] / both["hfu_published"]
    columns = (
        Column("Devices", "ranks", text.count),
        Column("Model", "model", numeric=False),
        Column("Published in", "paper", numeric=False),
        Column("Time per batch", "time_s", text.seconds),
        Column("Published time (implied)", "time_s_published", text.seconds, missing="of another batch"),
        flops_column("Sustained", "hardware_flops_per_s", both),
        flops_column("Published", "hardware_flops_per_s_published", both, missing="not printed"),
        Column("HFU", "hfu", text.percent, missing=NO_PEAK),
        Column("Published HFU", "hfu_published", text.percent, missing="not printed"),
        Column("Of empirical peak", "of_empirical", text.percent, missing=NO_PEAK),
        Column("Published, of empirical", "of_empirical_published", text.percent, missing="not printed"),
        Column("HFU, ours over published", "ratio", lambda value: f"{value:.2f}"),
    )
    return [Table("Against the published figures", columns, both, f"{series.name}-against")]


def _details(table: pd.DataFrame, frames: Frames) -> Section:
    newest = table[table["newest"] >= 0]
    calls = frames.collectives.merge(
        newest[["newest", "system", "ranks", "model", "grid"]], left_on="run", right_on="newest"
    ).sort_values(["system", "ranks", "model", "grid", "axis", "kind"])
    which = (
        Column("System", "system", numeric=False, missing="unnamed"),
        Column("Devices", "ranks", text.count),
        Column("Model", "model", numeric=False),
        Column("Grid", "grid", numeric=False),
    )
    collectives = Table(
        "Collectives of one iteration", (*which, Column("Collective", "kind", numeric=False),
        Column("Axis", "axis", numeric=False), Column("Calls", "calls", text.count),
        Column("Bytes", "bytes", text.size), Column("Time", "time_s", text.seconds)),
        calls, "collectives", "On rank 0, newest job of each point; bytes are those of the input buffers.",
    )  # fmt: skip
    budget = Table(
        "Time and memory", (*which, Column("Compute", "compute_s", text.seconds),
        Column("Collectives", "collectives_s", text.seconds),
        Column("Peak memory, fullest rank", "memory_max", text.memory),
        Column("emptiest rank", "memory_min", text.memory)),
        newest, "budget", "Medians over jobs; times are of one iteration on rank 0.",
    )  # fmt: skip
    return Section("Details", (budget, collectives, provenance(frames.runs)))


def _published() -> Section:
    table = published.weak_scaling()
    columns = (
        Column("Paper", "paper", numeric=False),
        Column("System", "system", numeric=False),
        Column("Framework", "framework", numeric=False),
        Column("Devices", "ranks", text.count),
        Column("Model", "model", numeric=False),
        flops_column("Sustained", "hardware_flops_per_s", table, missing="not printed"),
        Column("Of advertised peak (HFU)", "hfu", text.percent, missing="not printed"),
        Column("Of empirical peak", "of_empirical", text.percent, missing="not printed"),
        Column("Time per batch, implied", "time_s", text.seconds, missing="not printed"),
    )
    note = (
        "Published figures, not measured here. Source: axonn-sc24 Table III (batches of 16.8 M tokens) and par4d Table "
        "III (4 M tokens). They count recomputation, so they are HFU; MFU is about 0.75 of it. Times follow from the "
        "printed flop/s or HFU and the formula of Narayanan et al. with a vocabulary of 51,200."
    )
    return Section("Published figures", (Table("Published weak scaling", columns, table, "published", note),))
