"""Two linear layers by tensor mode: elements moved by devices, and memory by batch and by hidden size."""

from collections.abc import Sequence

import pandas as pd

from reports import text
from reports.columns import columns_of
from reports.frames.jobs import measured_by
from reports.page import Block, Column, Figure, Figures, Table
from reports.plots.canvas import Scale
from reports.plots.lines import Line, lines
from reports.words import NOTES

COLOURS = {"1D": "blue", "2D": "red", "2.5D": "green", "3D": "purple"}
RANGES = {"batch": "sequences", "hidden": "hidden size"}
SHAPE = ["mode", "grid", "layers_on", "batch", "sequence", "hidden"]
BY_TABLE_1 = Column("By Table 1", "by_table", text.times, missing="not printed")
SAVED = Column("Of 1D's memory", "of_1d", text.times, missing="no 1D")


def blocks(layers: pd.DataFrame, runs: pd.DataFrame) -> Sequence[Block]:
    """Return drawings and a table of the shapes that jobs counted; none where none did. Jobs count alike, and the
    newest stands for all.
    """
    table = measured_by(layers, runs).drop_duplicates(SHAPE, keep="last")
    if table.empty:
        return ()
    one_d = table[table["mode"] == "1D"].set_index(SHAPE[2:])["peak_bytes"]
    same = pd.MultiIndex.from_frame(table[SHAPE[2:]])
    table = table.assign(
        by_table=table["moved_elements"] / table["table_elements"],
        of_1d=table["peak_bytes"].to_numpy() / one_d.reindex(same).to_numpy(),
        held_by_formula=table["held_bytes"] / table["held_formula"],
        moved_by_formula=table["moved_elements"] / table["moved_formula"],
    )
    figures = [found for found in (_moved(table), *(_held(table, grows) for grows in RANGES)) if found]
    columns = columns_of(
        "mode grid",
        Column("Batch", "batch", text.count),
        Column("Tokens of a sequence", "sequence", text.count),
        Column("Hidden", "hidden", text.count),
        Column("Elements moved", "moved_elements", text.count),
        Column("By the formula", "moved_by_formula", text.times),
        BY_TABLE_1,
        Column("Held behind the forward", "held_bytes", text.memory),
        Column("By the formula", "held_by_formula", text.times),
        "peak_bytes",
        SAVED,
    )
    rows = table.sort_values(["layers_on", "mode", "batch", "hidden"])
    return (Figures(figures), Table("Two linear layers", columns, rows, "layers", NOTES["layers"]))


def _moved(table: pd.DataFrame) -> Figure | None:
    """Draw what all devices move of the shape that most layouts have, as colossal-ai's Fig. 5 does."""
    shape = ["batch", "sequence", "hidden"]
    mine = max((rows for _, rows in table.groupby(shape)), key=lambda rows: rows["layers_on"].nunique())
    if mine["layers_on"].nunique() < 2:
        return None
    first = mine.iloc[0]
    drawn = _by_mode(mine, "layers_on", "moved_elements")
    caption = (
        f"Elements that all devices together send in a step of two layers of {int(first['hidden']):,} features, for "
        f"{int(first['batch'])} sequences of {int(first['sequence'])} tokens, by rings."
    )
    drawing = lines(drawn, Scale("devices", "log2"), Scale("elements", "log10"))
    return Figure("Elements moved", caption, drawing, mine, "layers-moved", f"{_said(drawn)}. {caption}")


def _held(table: pd.DataFrame, grows: str) -> Figure | None:
    """Draw the peak memory on as many devices as most modes have, by what grows, as colossal-ai's Fig. 8 does."""
    other = next(name for name in RANGES if name != grows)
    several = table.groupby([*SHAPE[:3], "sequence", other])[grows].transform("nunique") > 1
    if not several.any():
        return None
    ranges = table[several]
    devices = ranges["layers_on"].max()
    mine = ranges[ranges["layers_on"] == devices]
    drawn = _by_mode(mine.assign(gb=mine["peak_bytes"] / 1e9), grows, "gb")
    caption = f"The most that a rank's allocator gave in a step, on {text.plural(int(devices), 'device')}."
    drawing = lines(drawn, Scale(RANGES[grows], "log2"), Scale("GB", "log10"))
    return Figure(f"Memory by {grows}", caption, drawing, mine, f"layers-{grows}", f"{_said(drawn)}. {caption}")


def _by_mode(table: pd.DataFrame, x: str, y: str) -> list[Line]:
    """Return a line a mode, through the smallest where several layouts stand at one place."""
    least = table.groupby(["mode", x])[y].min().reset_index()
    modes = [mode for mode in COLOURS if mode in set(least["mode"])]
    return [Line.of(least[least["mode"] == mode], x, y, COLOURS[mode], mode) for mode in modes]


def _said(drawn: Sequence[Line]) -> str:
    return ". ".join(f"{line.label}: {line.y[0]:.3g} to {line.y[-1]:.3g}" for line in drawn if len(line.y))
