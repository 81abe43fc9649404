"""Overlap: what each way to hide communication gains (par4d IV and Fig. 3, 4; axonn-sc24 V-D and Fig. 5)."""

from typing import Any

import pandas as pd

from reports import overlap_figures, text
from reports.ablation import by_axis, flags, fullest, in_order, most_exposed, short, with_gains
from reports.frame import POINT, SETTING, Frames, series_title
from reports.page import Block, Column, Facts, Figures, Page, Paragraph, Section, Table, nothing_measured
from reports.points import points, runs_of
from reports.provenance import failures, provenance
from reports.series_page import Fact, published_gains, spelled_out
from reports.study import Study

TITLE = "Overlap"
SUMMARY = (
    "What each way to hide communication behind compute gains, one after the other and alone, and a step as a picture."
)
LEAD = (
    "The same training with and without each overlap: oar (a layer's all-reduce behind its weight gradient), ors "
    "(reduce-scatters waited for late), oag (gathers ahead of their use), cache (gathers kept for the recomputation), "
    "data (sums over data during the last backward). What is saved is a part of the time per batch: 20 % saved means "
    "0.8 times as long, 1.25x as fast. Times are medians over jobs."
)
COULD = (
    "What could be hidden is told by each run's own step: in each of its phases (forward, backward, what is left to be "
    "summed after it, optimizer) the smaller of compute and of the communication that isn't waited for at once, "
    "whether it ran behind compute or was waited for; hidden is what ran behind compute. Waits for results without "
    "which nothing is left to do are outside of it, as no schedule can hide them, and so is what is summed after the "
    "backward, where there is no compute to hide it: both show in the bars."
)
RUN = "reframe -c suites/overlap_ablation.py --system local"
NO_BASE = "no run without overlap"
MOST_SECTIONS = 12


def build(mine: Frames, everything: Frames) -> Page:
    """The page; with no runs it says what to run."""
    table, axes = by_axis(with_gains(points(mine.runs)), mine)
    groups = [rows for _, rows in table.groupby(SETTING, dropna=False, sort=True)]
    drawn = sorted(groups, key=lambda rows: -rows.loc[rows["jobs"] > 0, "overlap"].nunique())[:MOST_SECTIONS]
    titles = [_title(rows.iloc[0]) for rows in drawn]
    sections = [_overview(table, axes, len(groups)) if groups else nothing_measured(RUN)]
    for name, title, rows in zip(text.slugs(titles), titles, drawn, strict=True):
        sections.append(_section(name, title, rows, axes, mine))
    if groups:
        shown = pd.concat(drawn)
        rest = mine.runs.drop(runs_of(mine.runs, shown, SETTING).index)
        sections.append(Section("Details", (*failures(rest, "further"), provenance(mine.runs))))
    sections.append(Section("Published figures", (published_gains("overlap"),)))
    return Page(TITLE, LEAD, tuple(sections), _headline(table), empty=not groups)


STUDY = Study("overlap", TITLE, SUMMARY, 3, lambda runs: runs["study"] == "overlap_ablation", build)


def _title(row: "pd.Series[Any]") -> str:
    devices = text.plural(int(row["ranks"]), "device")
    return text.clean(f"{row['model']} on {row['grid']}, {devices}, {series_title(row)}", 120)


def _headline(table: pd.DataFrame) -> str:
    best = fullest(table).dropna(subset="gain_none").sort_values("gain_none")
    if best.empty:
        return "no gain measured"
    last = best.iloc[-1]
    return f"{last['none_s'] / last['time_s']:.2f}x as fast as without, {last['model']} on {last['grid']}"


def _overview(table: pd.DataFrame, axes: list[str], settings: int) -> Section:
    """One row a setting: its fullest variant against none."""
    data = spelled_out(fullest(table))
    exposed = [most_exposed(row, axes) for _, row in data.iterrows()]
    data = data.assign(
        faster=data["none_s"] / data["time_s"],
        axis=["" if one is None else one[0] for one in exposed],
        axis_s=[float("nan") if one is None else one[1] for one in exposed],
    )
    columns = (
        Column("System", "system", numeric=False, missing="unnamed"),
        Column("Model", "model", numeric=False),
        Column("Devices", "ranks", text.count),
        Column("Grid", "grid", numeric=False),
        Column("Without overlap", "none_s", text.seconds, missing=NO_BASE),
        Column("With", "hides", numeric=False),
        Column("Time", "time_s", text.seconds),
        Column("Jobs", "share", numeric=False),
        Column("As fast", "faster", lambda value: f"{value:.2f}x", missing=NO_BASE),
        Column("Saved", "gain_none", text.gain, missing=NO_BASE),
        Column("Of what could be hidden, hidden", "hidden", text.percent, missing="nothing to hide"),
        Column("Most exposed axis", "axis", numeric=False, missing="none"),
        Column("Exposed there", "axis_s", text.seconds, missing="none"),
    )
    note = "Every layout that ran, the variant with the most flags against none."
    if settings > MOST_SECTIONS:
        note += f" The {MOST_SECTIONS} with the most variants are drawn below."
    return Section("All layouts", (Table("Overlap by layout", columns, data, "layouts", note), Paragraph(COULD)))


def _section(name: str, title: str, rows: pd.DataFrame, axes: list[str], frames: Frames) -> Section:
    ordered = in_order(rows)
    runs = runs_of(frames.runs, rows, SETTING)
    blocks: list[Block] = []
    if (ordered["jobs"] > 0).any():
        blocks.append(_facts(rows, axes))
        drawn = (overlap_figures.steps(name, ordered), *overlap_figures.timeline(name, ordered, runs, frames))
        blocks.append(Figures(drawn, wide=True))
    else:
        blocks.append(Paragraph("Not measured: no job of this layout ended well."))
    blocks += [_details(name, rows, ordered, axes), *failures(runs, name)]
    return Section(title, tuple(blocks), f"series-{name}")


def _facts(rows: pd.DataFrame, axes: list[str]) -> Facts:
    best = fullest(rows)
    if best.empty:
        missing = "no run with overlap"
        return Facts(((None, "speed-up", missing), (None, "hidden", missing)))
    most = best.iloc[0]
    gained: tuple[Fact, ...] = ((None, "speed-up", NO_BASE),)
    if most["none_s"] == most["none_s"]:
        gained = (
            (f"{most['none_s'] / most['time_s']:.2f}x", "as fast as without", short(most["overlap"])),
            (text.gain(most["gain_none"]), "of the time saved", text.plural(int(most["jobs"]), "job")),
            (text.seconds(most["none_s"]), "a step without", "median over jobs"),
        )
    return Facts((*gained, (text.seconds(most["time_s"]), "a step with", "median over jobs"), *_told(most, axes)))


def _told(most: "pd.Series[Any]", axes: list[str]) -> tuple[Fact, Fact]:
    """What the fullest variant hides, and where it still waits."""
    hidden: Fact = (None, "hidden", "nothing could be" if most["hideable_s"] == 0 else "phases were not told apart")
    if most["hidden"] == most["hidden"]:
        hidden = (
            text.percent(most["hidden"]),
            "hidden",
            f"of what could be, {text.seconds(most['hideable_s'])} of a step",
        )
    exposed = most_exposed(most, axes)
    if exposed is None:
        return hidden, (None, "stays most exposed", "no axis was told apart")
    return hidden, (exposed[0], "stays most exposed", f"{text.seconds(exposed[1])} of a step")


def _details(name: str, rows: pd.DataFrame, ordered: pd.DataFrame, axes: list[str]) -> Table:
    """Every variant with its times, what waits along each axis, and the memory it takes."""
    ladder = ordered.loc[ordered["place"] == "ladder", [*POINT[-2:], "gain_over"]]
    data = spelled_out(rows.merge(ladder, on=POINT[-2:], how="left"))
    rank = data["overlap"].map(lambda overlap: (len(flags(overlap) or ()), overlap))
    data = data.iloc[sorted(range(len(data)), key=lambda place: rank.iloc[place])]
    columns = [
        Column("Overlap", "hides", numeric=False),
        Column("Jobs", "share", numeric=False),
        Column("Step", "time_s", text.seconds),
        Column("Range, s", "spread", numeric=False),
        Column("Saved over the one before", "gain_over", text.gain, missing=""),
        Column("Saved over none", "gain_none", text.gain, missing=""),
        Column("Of what could be hidden, hidden", "hidden", text.percent, missing=""),
        Column("Compute", "compute_s", text.seconds),
        Column("Exposed, can't be hidden", "blocking_s", text.seconds, missing="not told apart"),
        Column("Exposed, could be hidden", "exposed_s", text.seconds, missing="not told apart"),
        *(Column(f"Exposed, {axis}", f"exposed_{axis}", text.seconds, missing="none") for axis in axes),
        *(Column(f"Hidden, {axis}", f"hidden_{axis}", text.seconds, missing="none") for axis in axes),
        Column("Peak memory, fullest rank", "memory_max", text.memory),
        Column("Gathered ahead", "prefetch_bytes", text.memory, missing="not told"),
        Column("In the cache", "cache_bytes", text.memory, missing="not told"),
        Column("Blocks cached", "cached_blocks", text.count, missing="not told"),
    ]
    kept = [
        column
        for column in columns
        if not column.key.startswith(("exposed_", "hidden_")) or data[column.key].notna().any()
    ]
    note = (
        "Medians over jobs; times are of one iteration on rank 0, memory gathered ahead and cached is part of the peak."
    )
    return Table(
        "Variants", tuple(kept), data.assign(only_failed=data["jobs"] == 0), f"{name}-details", note, "only_failed"
    )
