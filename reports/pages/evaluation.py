"""Evaluation: accuracy or perplexity of data that isn't trained on, step by step; and of every tensor mode beside data
parallelism (colossal-ai 5.2 and Fig. 7).
"""

from typing import Any

import pandas as pd

from reports import text
from reports.columns import columns_of, failures, provenance
from reports.frames.evaluations import DATA, beside_data, with_last
from reports.frames.evaluations import STUDY as NAME
from reports.frames.frame import Frames
from reports.frames.jobs import by_time, grouped
from reports.page import MOST_SECTIONS, Block, Column, Figure, Figures, Page, PageSection, Table
from reports.pages.study import Study
from reports.plots.canvas import Scale
from reports.plots.lines import Line, lines

KEY = ["study", "system", "partition", "dtype", "model", "batch_size"]
MOST_LINES, MOST_SEEDS = 6, 4
COLOURS = ("blue", "red", "green", "purple", "blue", "red")
RIGHT = Column("Right at last", "right", text.percent, missing="nothing is right or wrong")
BEST = Column("Best", "best_right", text.percent, missing="nothing is right or wrong")
PERPLEXITY = Column("Perplexity", "perplexity", text.significant, missing="no text")
APART = Column("Farthest from data parallelism", "apart", text.points, missing="not compared")
NOTE = (
    "Farthest: the largest difference of accuracies, of all evaluations, from the training by data parallelism alone "
    "with the same seed, network and batch that is nearest in time."
)


def build(mine: Frames, everything: Frames) -> Page:
    runs = with_last(mine.runs, mine.evaluations)
    if runs.empty:
        return Page(empty=True)
    pairs = beside_data(runs, mine.evaluations)
    sections = [_section(*one, pairs, mine.evaluations) for one in grouped(runs, KEY, _title, MOST_SECTIONS)]
    details = PageSection("Details", (*failures(mine.runs, "failed"), provenance(mine.runs)))
    return Page([*sections, details], _headline(runs, pairs))


STUDY = Study(NAME, 4.1, lambda runs: runs["evaluated"].astype(bool) | (runs["study"] == NAME), build)


def _title(run: "pd.Series[Any]") -> str:
    of = "" if run["study"] == NAME else run["study"]
    return text.title(run["system"], run["partition"], run["dtype"], run["model"], of)


def _headline(runs: pd.DataFrame, pairs: pd.DataFrame) -> str:
    compared = pairs.dropna(subset="apart")
    if len(compared):
        modes = text.plural(compared["mode"].nunique(), "tensor mode")
        return f"{modes} at most {text.points(compared['apart'].max())} from data parallelism"
    return f"{text.plural(len(runs), 'training')} evaluated"


def _section(name: str, title: str, rows: pd.DataFrame, pairs: pd.DataFrame, table: pd.DataFrame) -> PageSection:
    own = pairs.set_index("run")["apart"].reindex(rows.index)
    rows = by_time(rows.assign(apart=own))
    seeds = [(seed, of) for seed, of in rows.groupby("seed")][-MOST_SEEDS:]
    figures = [_curves(f"{name}-{seed}", f"seed {seed}" if len(seeds) > 1 else "", of, table) for seed, of in seeds]
    blocks: list[Block] = [Figures(figures), _table(name, rows)]
    return PageSection(title, blocks, f"evaluation-{name}", one_of_many=True)


def _curves(name: str, seed: str, rows: pd.DataFrame, table: pd.DataFrame) -> Figure:
    """Draw what each layout's newest training of a seed found, data parallelism as the broad line behind the others."""
    of_text = rows["perplexity"].notna().any()
    key, unit = ("perplexity", "perplexity") if of_text else ("right", "right, %")
    if not of_text and rows["right"].isna().all():
        key, unit = "loss", "loss"
    newest = rows.drop_duplicates(["mode", "grid"], keep="last").tail(MOST_LINES)
    behind = newest["mode"] == DATA
    shown = table.assign(shown=table[key] * (100 if key == "right" else 1)).sort_values("step")
    drawn = []
    for colour, (run, row) in zip(COLOURS, newest[~behind].iterrows(), strict=False):
        label = str(row["mode"] or row["grid"])
        drawn.append(Line.of(shown[shown["run"] == run], "step", "shown", colour, label, kind="curve"))
    for run, _ in newest[behind].iterrows():
        drawn.insert(0, Line.of(shown[shown["run"] == run], "step", "shown", "muted", DATA, kind="backdrop"))
    data = table[table["run"].isin(newest.index)].merge(newest[["mode", "grid"]], left_on="run", right_index=True)
    caption = f"Of {int(newest['samples'].iloc[-1]):,} samples that are not trained on, by the steps done before."
    if behind.any():
        caption += " Broad line: data parallelism alone."
    said = ". ".join(f"{line.label}: {line.y[0]:.4g} to {line.y[-1]:.4g}" for line in drawn if len(line.y))
    title = ", ".join(filter(None, ({"right": "Accuracy", "perplexity": "Perplexity", "loss": "Loss"}[key], seed)))
    drawing = lines(drawn, Scale("step"), Scale(unit))
    return Figure(title, caption, drawing, data, f"{name}-curves", f"{said}. {caption}")


def _table(name: str, rows: pd.DataFrame) -> Table:
    apart = [APART] if rows["apart"].notna().any() else []
    quality = [PERPLEXITY] if rows["perplexity"].notna().any() else [RIGHT, BEST]
    columns = columns_of(
        "end",
        *([Column("Mode", "mode", numeric=False, missing="")] if rows["mode"].any() else []),
        "grid",
        Column("Seed", "seed", numeric=False),
        Column("Evaluations", "evaluations", text.count),
        Column("Loss at last", "loss", text.significant),
        *quality,
        *apart,
    )
    return Table("Evaluations", columns, rows.sort_values("when", ascending=False), f"{name}-evaluations", NOTE)
