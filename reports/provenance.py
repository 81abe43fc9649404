"""Where every point comes from, and which jobs failed: tables that each study's page ends with."""

import pandas as pd

from reports import text
from reports.page import Column, Table

START_AND_END = (
    Column("Start", "start", text.moment, missing="unknown"),
    Column("End", "end", text.moment, missing="unknown"),
    Column("Status", "status", numeric=False),
)
ORIGIN = (
    Column("Commit", "commit", lambda commit: commit[:12], numeric=False, missing="unknown"),
    Column("Working tree", "dirty", numeric=False),
    Column("Launcher", "launcher", numeric=False, missing="none"),
    Column("Network", "transport", numeric=False, missing="not told", wide=True),
)
MACHINES = (
    Column("Hosts", "hosts", numeric=False, missing="unknown", wide=True),
    Column("Device", "devices", numeric=False, missing="unknown", wide=True),
    Column("Versions", "versions", numeric=False, missing="unknown", wide=True),
)


def provenance(runs: pd.DataFrame) -> Table:
    """Every job of a study, newest first."""
    data = runs.sort_values("end", ascending=False, kind="stable")
    columns = (
        *START_AND_END,
        Column("System", "system", numeric=False, missing="unnamed"),
        Column("Partition", "partition", numeric=False, missing="none"),
        Column("Variant", "variant", numeric=False, missing="none"),
        Column("Model", "model", numeric=False, missing="none"),
        Column("Devices", "ranks", text.count),
        Column("Grid", "grid", numeric=False, missing="none"),
        Column("Overlap", "overlap", numeric=False, missing="not recorded"),
        *ORIGIN,
        *MACHINES,
        Column("Test failed later", "remark", numeric=False, missing="no", wide=True),
        Column("Result", "source", numeric=False, wide=True),
    )
    note = "A test that failed later found the result good, and then its figures off their references: it is shown."
    return Table("Provenance of every job", columns, data, "provenance", note if (data["remark"] != "").any() else "")


def failures(runs: pd.DataFrame, name: str) -> list[Table]:
    """The jobs that failed, each with its reason, if any did. name: tells the table from others in the page."""
    data = runs[runs["status"] != "ok"].sort_values("end", ascending=False, kind="stable")
    if data.empty:
        return []
    columns = (
        Column("Devices", "ranks", text.count),
        Column("Model", "model", numeric=False, missing="none"),
        Column("Grid", "grid", numeric=False, missing="none"),
        Column("Overlap", "overlap", numeric=False, missing="not recorded"),
        Column("End", "end", text.moment, missing="unknown"),
        Column("Reason", "reason", numeric=False, missing="no reason given", wide=True),
        Column("Result", "source", numeric=False, wide=True),
    )
    return [Table("Failed jobs", columns, data, f"{name}-failed")]
