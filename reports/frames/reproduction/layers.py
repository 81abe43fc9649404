"""Elements and memory of two linear layers by tensor mode, by which claims are judged. Counts are alike in all jobs."""

import re
from collections.abc import Iterable

import pandas as pd

from reports.frames.modes import of_framework
from reports.frames.reproduction.samples import Asked, Sample, divided, hull, lead_of, over_jobs, place_of, saved_of
from reports.text import plural

ONE_D = "1D"
RANGES = {"ByBatch": "batch", "ByWidth": "hidden"}
"""Size that grows in the jobs of a test of suites/layers.py."""


def moved(asked: Asked) -> Sample | None:
    """Return the elements that were moved over those of Table 1, by a number's mode on the most devices."""
    rows = _rows(asked)
    mine = rows[rows["mode"] == of_framework(asked.number.framework)]
    return _over_jobs(mine[mine["layers_on"] == mine["layers_on"].max()], "moved_elements", "table_elements")


def moved_order(asked: Asked) -> Sample | None:
    """Return by how many more elements the mode moves that is said to be behind."""
    return _lead(asked, _rows(asked), "moved_elements")


def saved(asked: Asked) -> Sample | None:
    """Return the part of 1D's memory that a number's mode saves: on the paper's machine at the paper's size, elsewhere
    at the largest.
    """
    what, grows = asked.number.what, _grows(asked)
    rows = _on(asked, _range(asked, _rows(asked)))
    printed = re.search(r"\d+$", what)
    size = float(printed[0]) if asked.home and printed else rows[grows].max()
    at = rows[rows[grows] == size]
    mine, other = (
        _over_jobs(at[at["mode"] == mode], "peak_bytes") for mode in (of_framework(asked.number.framework), ONE_D)
    )
    return saved_of(divided(mine, other, f"{mine.of}, {grows} {size:g}")) if mine and other else None


def memory_order(asked: Asked) -> Sample | None:
    """Return by how much more memory the mode takes that is said to be behind, at all sizes of the range."""
    rows, grows = _range(asked, _rows(asked)), _grows(asked)
    return _hull(_lead(asked, at, "peak_bytes") for _, at in rows.groupby(grows))


def _rows(asked: Asked) -> pd.DataFrame:
    """Return the shapes that were counted on a machine."""
    runs = {row["run"] for row in asked.evidence.rows(asked.machine, "layers")}
    table = asked.evidence.frames.layers
    return table[table["run"].isin(runs)]


def _grows(asked: Asked) -> str:
    return RANGES[asked.claim.redo[0].only]


def _range(asked: Asked, rows: pd.DataFrame) -> pd.DataFrame:
    """Return the jobs in which that grows which the claim speaks of."""
    return rows[rows.groupby("run")[_grows(asked)].transform("nunique") > 1]


def _on(asked: Asked, rows: pd.DataFrame) -> pd.DataFrame:
    """Return what is on the devices of the target."""
    devices = place_of(asked.target).devices
    return rows if devices is None else rows[rows["layers_on"].between(*devices)]


def _lead(asked: Asked, rows: pd.DataFrame, figure: str) -> Sample | None:
    """Return by how much larger a figure is of the mode behind than of that ahead, on the devices of a comparison."""
    comparison, mine = asked.target.comparison, _on(asked, rows)
    if comparison is None:
        return None
    ahead, behind = (_over_jobs(mine[mine["mode"] == name], figure) for name in (comparison.ahead, comparison.behind))
    return lead_of(divided(behind, ahead, ahead.of)) if ahead and behind else None


def _over_jobs(rows: pd.DataFrame, figure: str, by: str = "") -> Sample | None:
    """Return a figure, or its ratio by another, over the jobs of one layout: where there are several, of the smallest
    figure.
    """
    values = rows[figure] / rows[by] if by else rows[figure]
    found = [over_jobs(values[own.index], _named(own)) for _, own in rows.groupby("grid")]
    return min(filter(None, found), key=lambda one: one.value, default=None)


def _named(rows: pd.DataFrame) -> str:
    first = rows.iloc[0]
    return f"{first['mode']} on {first['grid']}, {plural(int(first['layers_on']), 'device')}"


def _hull(samples: Iterable[Sample | None]) -> Sample | None:
    known = [one for one in samples if one is not None]
    return hull(known) if known else None
