"""Bandwidth between ranks: of rings within a node and between nodes."""

from collections.abc import Sequence

import pandas as pd

from engine.result.schema import Result
from reports import text
from reports.columns import columns_of
from reports.jobs import measured_by
from reports.page import Column, KeyFact, Table
from reports.text import number, positive

WORDS = {
    "within": "within a node",
    "alone": "between nodes, one rank a node and nothing beside it",
    "shared": "between nodes, all ranks of the nodes at once",
}
KINDS = {"all_gather": "All-gather", "reduce_scatter": "Reduce-scatter", "all_reduce": "All-reduce"}
KEYS = ["where", "apart", "ring", "groups", "nodes"]
COLUMNS = ["run", *KEYS, "message_bytes", "ring_bytes_per_s", *KINDS]
NOTE = (
    "G1 ranks of a ring are G0 ranks apart, and all rings of a row communicate at once, the largest message; on a "
    "processor's gloo a reduce-scatter is an exchange and a local sum."
)


def rings(results: Sequence[Result]) -> pd.DataFrame:
    """Make one row of COLUMNS for each group of rings that a result measured."""
    rows = []
    for place, result in enumerate(results):
        if result.links is None:
            continue
        size = number(result.links.message_bytes)
        for where in WORDS:
            for found in getattr(result.links, where):
                kinds: dict[str, float] = {}
                for one in found.times:  # the largest message is first
                    kinds.setdefault(one.kind, positive(one.bytes_per_s))
                shape = (found.apart, found.ranks, found.groups, found.nodes)
                measured = (positive(found.bytes_per_s), *(kinds.get(kind) for kind in KINDS))
                rows.append((place, where, *map(number, shape), size, *measured))
    return pd.DataFrame(rows, columns=COLUMNS)


def by_shape(every: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Make one row a shape: medians over the jobs that ended well, and their number. every: as rings() makes it."""
    rows = measured_by(every, runs)
    columns = {name: (name, "median") for name in ("message_bytes", "ring_bytes_per_s", *KINDS)}
    table = rows.groupby(KEYS, sort=False).agg(**columns, jobs=("run", "count")).reset_index()
    return table.assign(words=table["where"].map(WORDS))


def table(name: str, rows: pd.DataFrame) -> Table:
    columns = columns_of(
        "words",
        Column("G0", "apart", text.count),
        "ring groups nodes ring_bytes_per_s",
        *(
            Column(title, kind, text.rate, missing="not measured", figure="ring_bandwidth")
            for kind, title in KINDS.items()
        ),
        "message_bytes jobs",
        nodes="Nodes of a ring",
    )
    return Table("Bandwidth between ranks", columns, rows, f"{name}-rings", NOTE)


def fact(rows: pd.DataFrame) -> KeyFact:
    between = rows[rows["where"] == "alone"]
    row = (between if len(between) else rows).iloc[-1 if len(between) else 0]
    what = f"bandwidth of a ring of {int(row['ring'])} ranks {row['words']}"
    return text.rate(row["ring_bytes_per_s"]), what, f"messages of {text.size(row['message_bytes'])}"
