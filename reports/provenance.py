"""Where every point comes from, and which jobs failed: tables that each study's page ends with."""

import pandas as pd

from reports.columns import columns_of, first
from reports.page import Table

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
