"""Every column that tables of the report share: its title, how a value is written, and what stands where there is none.

A table names its columns by the keys of its frame; a title or a missing value of its own it gives beside them.
"""

import csv
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from reports import text
from reports.page import Column, Table

NO_PEAK = "no peak known"
NO_BASE = "no run without overlap"
NO_SERIAL = "no serial run"
NOT_PRINTED = "not printed"
NOT_KNOWN = "not known"
_NONE: Mapping[str, str] = MappingProxyType({})


def _read() -> dict[str, Column]:
    """Read columns.csv: a function of text, a format, or "words" writes a value, and ends are keys of an interval."""
    with Path(__file__).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {
        row["key"]: Column(
            row["title"],
            row["key"],
            str
            if row["write"] == "words"
            else row["write"].format
            if "{" in row["write"]
            else getattr(text, row["write"]),
            numeric=row["write"] not in ("words", "{:.12}"),
            missing=row["missing"],
            figure=row["figure"],
            spread=(low, high) if (low, _, high) != ("", "", "") else None,
            level=float(row["level"] or "nan"),
        )
        for row in rows
        for low, _, high in [row["ends"].partition(" ")]
    }


KNOWN = _read()


def samples_of(of_images: "pd.Series[bool]") -> str:
    """Name what networks are trained on, of which it is known whether they see images."""
    return "images" if of_images.all() else "sequences or images" if of_images.any() else "sequences"


def first(data: pd.DataFrame) -> str:
    """Give the key of the column that a table of several systems begins with; none for a table of one."""
    return "system" if data["system"].nunique() > 1 else ""


def columns_of(*parts: str | Column, missing: Mapping[str, str] = _NONE, **titles: str) -> tuple[Column, ...]:
    """Return the columns of keys separated by blanks, with own columns among them.

    titles and missing replace the usual ones. A key that is named twice stands at its first place.
    """
    found: dict[str | Column, Column] = {}
    for part in parts:
        for key in [part] if isinstance(part, Column) else part.split():
            if isinstance(key, Column):
                found[key] = key
            elif key not in found:
                one = KNOWN[key]
                found[key] = replace(one, title=titles.get(key, one.title), missing=missing.get(key, one.missing))
    return tuple(found.values())


ORIGIN = "commit dirty launcher transport hosts devices versions binding remark source"
"""Columns that tell the origin of a job or contest."""


def provenance(runs: pd.DataFrame) -> Table:
    """List every job of a study, newest first."""
    data = runs.sort_values("end", ascending=False, kind="stable")
    keys = "start end status system partition variant model ranks grid overlap"
    columns = columns_of(keys, ORIGIN, missing={"model": "none", "grid": "none"})
    note = "A test that failed later found the result good, and then its figures off their references: it is shown."
    return Table("Provenance of every job", columns, data, "provenance", note if (data["remark"] != "").any() else "")


def failures(runs: pd.DataFrame, name: str) -> list[Table]:
    """Return the jobs that failed, each with its reason, if any did. name: tells the table from others in the page."""
    data = runs[runs["status"] != "ok"].sort_values("end", ascending=False, kind="stable")
    if data.empty:
        return []
    columns = columns_of(
        first(data), "ranks model grid overlap end reason source", missing={"model": "none", "grid": "none"}
    )
    return [Table("Failed jobs", columns, data, f"{name}-failed")]
