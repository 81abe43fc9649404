"""Bandwidth of rings and of broadcasts between ranks (colossal-ai, Fig. 10), and times of messages and all-reduces by
size and back end (axonn-ipdps22, Fig. 3 and 4).
"""

import math

import pandas as pd

from reports import text
from reports.columns import columns_of
from reports.frames.devices import PLACES, RING, RING_KINDS
from reports.frames.frame import Frames
from reports.frames.jobs import measured_by
from reports.page import Column, Figure, KeyFact, Table
from reports.plots.canvas import Scale
from reports.plots.heat import Cell, Group, heat
from reports.plots.lines import Line, lines
from reports.words import NOTES

TITLES = {"message": "Messages between two ranks", "all_reduce": "All-reduces"}
COLOURS = {"gloo": "blue", "memory": "green", "nccl": "red", "mpi": "purple"}
TRANSFER = ["operation", "nodes", "among", "num_bytes", "backend"]
"""Columns that tell one size of a transfer from another."""
MOST_RANKS = 16
"""Ranks of a drawing of pairs."""


def by_shape(frames: Frames, runs: pd.DataFrame) -> pd.DataFrame:
    """Make a row a shape of rings: medians over the jobs that ended well, and their number."""
    columns = {name: (name, "median") for name in ("message_bytes", "ring_bytes_per_s", *RING_KINDS)}
    rows = measured_by(frames.rings, runs).groupby(RING, sort=False)
    table = rows.agg(**columns, jobs=("run", "count")).reset_index()
    return table.assign(words=table["where"].map(PLACES))


def ring_table(name: str, rows: pd.DataFrame) -> Table:
    columns = columns_of(
        "words",
        Column("G0", "apart", text.count),
        "ring groups nodes ring_bytes_per_s",
        *(Column(title, kind, text.rate, figure="ring_bandwidth") for kind, title in RING_KINDS.items()),
        "message_bytes jobs",
        nodes="Nodes of a ring",
    )
    return Table("Bandwidth between ranks", columns, rows, f"{name}-rings", NOTES["rings"])


def ring_bandwidth(rows: pd.DataFrame) -> KeyFact:
    between = rows[rows["where"] == "alone"]
    row = between.iloc[-1] if len(between) else rows.iloc[0]
    what = f"bandwidth of a ring of {int(row['ring'])} ranks {row['words']}"
    return text.rate(row["ring_bytes_per_s"]), what, f"messages of {text.size(row['message_bytes'])}"


def by_group(frames: Frames, runs: pd.DataFrame) -> pd.DataFrame:
    """Make a row a group of ranks that broadcast: medians over the jobs that ended well, and their number."""
    rows = measured_by(frames.broadcasts, runs).groupby(["ranks", "among"], sort=False)
    columns = {name: (name, "median") for name in ("message_bytes", "broadcast_bytes_per_s")}
    return rows.agg(**columns, jobs=("run", "count")).reset_index()


def pair_map(name: str, rows: pd.DataFrame) -> Figure | None:
    """Draw the bandwidth between each two ranks, the first of which sends; None where none is known."""
    pairs = rows[rows["among"] == 2].dropna(subset="broadcast_bytes_per_s")
    if pairs.empty:
        return None
    rates = {
        tuple(map(int, ranks.split())): rate
        for ranks, rate in zip(pairs["ranks"], pairs["broadcast_bytes_per_s"], strict=True)
    }
    ranks = sorted({rank for pair in rates for rank in pair})[:MOST_RANKS]
    most = max(rates.values())
    factor, letter = text.prefix(most)
    cells = {}
    for row, first in enumerate(ranks):
        for column, second in enumerate(ranks):
            rate = rates.get((min(first, second), max(first, second)), math.nan)
            cells[row, 0, column] = Cell(rate / most, text.significant(rate / factor, 2))
    drawing = heat(
        [(f"rank {rank}", "") for rank in ranks], [Group("", f"{letter}B/s, with rank", tuple(map(str, ranks)))], cells
    )
    least = min(rates, key=rates.__getitem__)
    said = (
        f"{text.rate(rates[least])} between ranks {least[0]} and {least[1]} at the least, {text.rate(most)} at the most"
    )
    caption = "The fuller the colour the faster."
    if len(ranks) < len({rank for pair in rates for rank in pair}):
        caption += f" The first {MOST_RANKS} ranks: the table has all."
    title = "Bandwidth between each two ranks"
    return Figure(title, caption, drawing, pairs, f"{name}-pairs", f"{title}: {said}.")


def broadcast_table(name: str, rows: pd.DataFrame) -> Table:
    columns = columns_of(
        Column("Ranks", "ranks", numeric=False),
        Column("Bandwidth", "broadcast_bytes_per_s", text.rate, figure="broadcast_bandwidth"),
        "message_bytes jobs",
    )
    return Table("Broadcasts", columns, rows, f"{name}-broadcasts")


def by_size(frames: Frames, runs: pd.DataFrame) -> pd.DataFrame:
    """Make a row a size of a back end: the median over jobs, the extremes of their samples, and how many jobs."""
    grouped = measured_by(frames.transfers, runs).groupby(TRANSFER, sort=False)
    table = grouped.agg(
        average_s=("average_s", "median"), low_s=("low_s", "min"), high_s=("high_s", "max"), jobs=("run", "count")
    ).reset_index()
    table = table.sort_values(TRANSFER[:-1], ascending=[False, True, True, True], kind="stable", ignore_index=True)
    words = ["within a node" if nodes == 1 else f"between {text.plural(nodes, 'node')}" for nodes in table["nodes"]]
    return table.assign(what=table["operation"].map(TITLES), words=words)


def transfer_times(name: str, table: pd.DataFrame) -> list[Figure]:
    """Draw a chart of messages and one of all-reduces, with a line a back end and place."""
    figures = []
    caption = "Solid lines: within a node; dashed ones: between nodes."
    for operation, rows in table.groupby("operation", sort=False):
        drawn = []
        for _, line in rows.groupby(["nodes", "backend"], sort=False):
            nodes, backend = line.iloc[0][["nodes", "backend"]]
            label = backend if nodes == 1 else f"{backend}, {nodes} nodes"
            kind = "measured" if nodes == 1 else "published"
            drawn.append(Line.of(line, "num_bytes", "average_s", COLOURS[backend], label, kind=kind))
        chart = lines(
            drawn,
            Scale("bytes", "log2", write=_bytes),
            Scale("time", "log10", write=lambda value: text.si(value, "s", 1)),
        )
        title, best = TITLES[str(operation)], rows.sort_values("average_s").iloc[0]
        least = f"{text.seconds(best['average_s'])} {best['words']} by {best['backend']} at the least"
        figures.append(Figure(title, caption, chart, rows, f"{name}-{operation}", f"{title}: {least}. {caption}"))
    return figures


def transfer_table(name: str, rows: pd.DataFrame) -> Table:
    """Set the back ends side by side."""
    keys = ["what", "words", "among", "num_bytes"]
    wide = rows.pivot_table(index=keys, columns="backend", values="average_s", sort=False)
    columns = columns_of(
        "what words among num_bytes",
        *(Column(backend, backend, text.seconds) for backend in COLOURS if backend in wide),
    )
    title = "Messages and all-reduces by back end"
    return Table(title, columns, wide.reset_index(), f"{name}-transfers", NOTES["transfers"])


def quickest_message(rows: pd.DataFrame) -> KeyFact:
    best = rows[rows["operation"] == rows.iloc[0]["operation"]].sort_values("average_s").iloc[0]
    what = f"{'a message' if best['operation'] == 'message' else 'an all-reduce'} of {_bytes(best['num_bytes'])}"
    return text.seconds(best["average_s"]), what, f"by {best['backend']}, {best['words']}"


def _bytes(value: float) -> str:
    """Write bytes in powers of 1,024.

    >>> _bytes(1 << 18)
    '256 KiB'
    """
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= factor:
            return f"{value / factor:,.4g} {unit}"
    return f"{value:,.0f} B"
