"""Time of a message between two ranks, and of an all-reduce, by its size and back end (axonn-ipdps22, Fig. 3 and 4)."""

from collections.abc import Sequence

import pandas as pd

from engine.result.schema import Result
from reports import text
from reports.columns import columns_of
from reports.jobs import long, measured_by
from reports.page import Column, Figure, KeyFact, Table
from reports.plots.canvas import Scale
from reports.plots.lines import Line, lines

TITLES = {"message": "Messages between two ranks", "all_reduce": "All-reduces"}
COLOURS = {"gloo": "blue", "memory": "green", "nccl": "red", "mpi": "purple"}
KEYS = ["operation", "nodes", "among", "num_bytes", "backend"]
NOTE = (
    "A message's time is one way, half of that there and back, as osu_latency has it; an all-reduce's is the ranks' "
    "average of a call that they begin together, as osu_allreduce prints it. The way through the engine, about 10 µs a "
    "call on a processor, is part of both. In a job the back ends took turns. Ranks of several nodes share no memory."
)


def transfers(results: Sequence[Result]) -> pd.DataFrame:
    """Make one row for each size of each back end that a result measured."""
    found = long(
        results,
        lambda one: one.transfers,
        plain="operation backend nodes ranks num_bytes",
        positives="average_s low_s high_s",
    )
    return found.rename(columns={"ranks": "among"})


def by_size(every: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Make one row for each size of each back end: the median over jobs, the extremes of their samples, and how many.

    every: as transfers() makes it.
    """
    grouped = measured_by(every, runs).groupby(KEYS, sort=False)
    table = grouped.agg(
        average_s=("average_s", "median"), low_s=("low_s", "min"), high_s=("high_s", "max"), jobs=("run", "count")
    ).reset_index()
    table = table.sort_values(KEYS[:-1], ascending=[False, True, True, True], kind="stable", ignore_index=True)
    table["what"] = table["operation"].map(TITLES)
    table["words"] = [
        "within a node" if nodes == 1 else f"between {text.plural(nodes, 'node')}" for nodes in table["nodes"]
    ]
    return table


def figures(name: str, table: pd.DataFrame) -> list[Figure]:
    """Draw a chart for messages and one for all-reduces, with a line a back end and place."""
    found = []
    for operation, rows in table.groupby("operation", sort=False):
        drawn = []
        for _, line in rows.groupby(["nodes", "backend"], sort=False):
            nodes, backend = line.iloc[0][["nodes", "backend"]]
            label = backend if nodes == 1 else f"{backend}, {nodes} nodes"
            drawn.append(
                Line.of(
                    line,
                    "num_bytes",
                    "average_s",
                    COLOURS[backend],
                    label,
                    kind="measured" if nodes == 1 else "published",
                )
            )
        title = TITLES[str(operation)]
        caption = "Solid lines: within a node; dashed ones: between nodes."
        chart = lines(
            drawn,
            Scale("bytes", "log2", write=_bytes),
            Scale("time", "log10", write=lambda value: text.si(value, "s", 1)),
        )
        best = rows.sort_values("average_s").iloc[0]
        words = (
            f"{title}: {text.seconds(best['average_s'])} {best['words']} by {best['backend']} at the least. {caption}"
        )
        found.append(Figure(title, caption, chart, rows, f"{name}-{operation}", words))
    return found


def table(name: str, rows: pd.DataFrame) -> Table:
    """Set the back ends side by side."""
    keys = ["what", "words", "among", "num_bytes"]
    wide = rows.pivot_table(index=keys, columns="backend", values="average_s", sort=False)
    known = [backend for backend in COLOURS if backend in wide]
    columns = columns_of(
        "what words",
        Column("Ranks", "among", text.count),
        Column("Bytes", "num_bytes", text.count),
        *(Column(backend, backend, text.seconds) for backend in known),
    )
    return Table("Messages and all-reduces by back end", columns, wide.reset_index(), f"{name}-transfers", NOTE)


def fact(rows: pd.DataFrame) -> KeyFact:
    """Tell the quickest message."""
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
