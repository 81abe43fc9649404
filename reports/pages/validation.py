"""Validation: the loss of the 4D engine step by step against the same training run serially (par4d VII-A), of long
trainings against data parallelism alone, and of first steps against other people's parallelism.
"""

import math
from dataclasses import replace
from typing import Any

import pandas as pd

from engine.result import metrics
from reports import text
from reports.columns import NO_SERIAL, columns_of, failures, provenance
from reports.figures import contests as of_contests
from reports.figures.scaling import unit_of_loss
from reports.frames.contests import points
from reports.frames.curves import KEY, SERIAL, compare, with_course
from reports.frames.frame import Frames
from reports.frames.jobs import grouped
from reports.page import MOST_SECTIONS, Block, Column, Facts, Figure, Figures, Page, PageSection, Paragraph, Table
from reports.pages.study import Study, trainings_of
from reports.plots.canvas import Scale
from reports.plots.lines import Line, lines

MOST_GRIDS = 4
MOST_STEPS = 2000
"""Most steps of a curve that are drawn; of longer ones means of steps are."""
OF_MEANS = f"compared by means of {metrics.WINDOW}"
NOTHING_HELD = Paragraph("Not compared: no contest ended well.")
_COLOURS = ("blue", "red", "green", "purple")


def build(mine: Frames, everything: Frames) -> Page:
    beside = mine.contests[mine.contests["study"] == "validation"]
    if mine.runs.empty and beside.empty:
        return Page(empty=True)
    mine = replace(mine, runs=with_course(mine.runs))
    pairs, steps = compare(mine)
    sections = [_section(*one, pairs, steps, mine) for one in grouped(mine.runs, KEY, _title, MOST_SECTIONS)]
    sections += [_beside(beside)] if len(beside) else []
    details = PageSection(
        "Details", [*([_table(pairs)] if len(pairs) else []), *failures(mine.runs, "all_jobs"), provenance(mine.runs)]
    )
    return Page([*sections, details], _headline(pairs))


STUDY = Study("validation", 4, trainings_of("validation"), build)


def _beside(contests: pd.DataFrame) -> PageSection:
    """Say how alike the losses of the first steps are to those of other people's parallelism."""
    held = points(contests)
    told = of_contests.equal("peers", held, "system model dtype grid") if held["jobs"].any() else NOTHING_HELD
    others = [*of_contests.failures(contests), *of_contests.missing(contests)]
    where = of_contests.provenance(contests, "peers-provenance")
    return PageSection("Beside other people's parallelism", [told, *others, where], "peers")


def _largest(value: float) -> str:
    return "without bound" if math.isinf(value) else f"{value:.2e}"


def _headline(pairs: pd.DataFrame) -> str:
    compared = pairs[pairs["reference"] == SERIAL].dropna(subset="largest")
    if compared.empty:
        return "no pair of serial and 4D runs yet"
    return f"largest difference {_largest(compared['largest'].max())} relative, {text.plural(len(compared), '4D run')}"


def _title(run: "pd.Series[Any]") -> str:
    return text.title(run["system"], run["partition"], run["dtype"], run["model"], run["course"])


def _section(
    name: str, title: str, rows: pd.DataFrame, pairs: pd.DataFrame, steps: pd.DataFrame, frames: Frames
) -> PageSection:
    newest = pairs[pairs["run"].isin(rows.index) & (pairs["serial"] >= 0)].sort_values("when", ascending=False)
    newest = newest.drop_duplicates("grid").head(MOST_GRIDS)
    blocks: list[Block] = [Paragraph("Not compared: it takes a serial run and a 4D run that both ended well.")]
    if len(newest):
        figures = Figures([_curves(name, newest, steps, frames), _differences(name, newest, steps)])
        blocks = [_facts(newest.sort_values("largest", na_position="first").iloc[-1]), figures]
    return PageSection(title, blocks, f"series-{name}", one_of_many=True)


def _facts(worst: "pd.Series[Any]") -> Facts | Paragraph:
    if pd.isna(worst["largest"]):
        return Paragraph("Not compared: the runs have no iteration in common.")
    of = worst["reference"]
    facts = [
        (_largest(worst["largest"]), "largest difference", f"relative to the {of} loss, grid {worst['grid']}"),
        (text.count(worst["compared"]), "iterations", "compared one by one" if of == SERIAL else OF_MEANS),
        (f"{worst['loss']:.4f}", "last loss", f"{of} {worst['serial_loss']:.4f}"),
    ]
    return Facts(facts)


def _curves(name: str, newest: pd.DataFrame, steps: pd.DataFrame, frames: Frames) -> Figure:
    serial = frames.iterations[frames.iterations["run"] == newest.iloc[0]["serial"]]
    of = newest["reference"].iloc[0]
    drawn = [Line.of(_few(serial), "index", "loss", "muted", of, kind="backdrop")]
    for colour, (_, pair) in zip(_COLOURS, newest.iterrows(), strict=False):
        mine = frames.iterations[frames.iterations["run"] == pair["run"]]
        drawn.append(Line.of(_few(mine), "index", "loss", colour, str(pair["grid"]), kind="curve"))
    grids = newest[["run", "grid"]]
    data = steps.merge(grids, on="run")[["grid", "index", "loss", "serial_loss", "difference"]]
    title = "Training loss"
    caption = f"{of.capitalize()} (broad line) and 4D on the grids XxYxZxDATA named, newest run of each."
    if len(serial) > MOST_STEPS:
        caption += " Means of successive steps; the table has all."
    drawing = lines(drawn, Scale("iteration"), Scale(unit_of_loss(newest)))
    said = ". ".join(f"{line.label}: {line.y[0]:.4f} to {line.y[-1]:.4f}" for line in drawn if line.y)
    return Figure(title, caption, drawing, data, f"{name}-loss", said)


def _differences(name: str, newest: pd.DataFrame, steps: pd.DataFrame) -> Figure:
    mine = steps[steps["run"].isin(newest["run"])]
    largest = float(mine["difference"].abs().max()) if mine["difference"].notna().any() else 0.0
    of_loss = unit_of_loss(newest)
    unit, letter = 10.0 ** (exponent := _exponent(largest)), f"10{str(exponent).translate(_RAISED)} {of_loss}"
    drawn = []
    for colour, (_, pair) in zip(_COLOURS, newest.iterrows(), strict=False):
        own = mine[mine["run"] == pair["run"]].sort_values("index")
        own = own.assign(scaled=own["difference"] / unit)
        drawn.append(Line.of(_few(own), "index", "scaled", colour, str(pair["grid"]), kind="curve"))
    of = newest["reference"].iloc[0]
    title = f"Difference from {of}"
    caption = f"4D loss minus {of} loss. Largest: {largest:.2e} {of_loss}."
    data = mine.merge(newest[["run", "grid"]], on="run")[["grid", "index", "difference", "relative"]]
    drawing = lines(drawn, Scale("iteration"), Scale(letter))
    return Figure(title, caption, drawing, data, f"{name}-difference", caption)


def _few(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps, or means of neighbours, MOST_STEPS at most."""
    each = -(-len(steps) // MOST_STEPS)
    if each <= 1:
        return steps
    numbers = steps.select_dtypes("number")
    return numbers.groupby([at // each for at in range(len(steps))]).mean()


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _exponent(value: float) -> int:
    """Return the power of ten of a positive number; 0 for zero."""
    return int(f"{value:e}".partition("e")[2]) if value > 0 else 0


def _table(pairs: pd.DataFrame) -> Table:
    columns = columns_of(
        "end system model dtype grid compared",
        Column("Against", "reference", numeric=False),
        "serial_loss loss",
        Column("Largest difference, relative", "largest", _largest, missing=NO_SERIAL, figure="relative_difference"),
        missing={"compared": "no serial run"},
        compared="Iterations compared",
    )
    note = (
        "Each 4D run against the serial run of the same model, number format and batch that is nearest in time; a long "
        f"one by means of {metrics.WINDOW} steps against data parallelism alone."
    )
    note += f" Curves are drawn for {MOST_SECTIONS} of them at most and {MOST_GRIDS} grids each."
    return Table("4D runs against serial", columns, pairs.sort_values("when", ascending=False), "pairs", note)
