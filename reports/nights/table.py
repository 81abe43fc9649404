"""One table has a night's verdicts: the page shows it, and text and Markdown are written from it."""

from collections.abc import Callable, Mapping

import pandas as pd

from reports import text
from reports.columns import columns_of
from reports.nights.report import NightReport
from reports.nights.verdicts import Verdict
from reports.page import Column, Table

UNITS: Mapping[str, Callable[[float], str]] = {
    "s": text.seconds, "flop/s": text.flops, "B": text.memory, "x": text.times
}  # fmt: skip
BAD = frozenset({"worse", "unknown, alarm", "failed"})


class Amount(float):
    """A number that knows its unit: it sorts and goes to a CSV as a number, and is read with the unit."""

    unit: str

    def __new__(cls, value: float, unit: str) -> "Amount":
        made = super().__new__(cls, value)
        made.unit = unit
        return made


def read(value: Amount) -> str:
    return UNITS[value.unit](value) if value.unit in UNITS else text.si(value, value.unit)


def verdict_column(missing: str = "") -> Column:
    return Column("Verdict", "verdict", numeric=False, missing=missing, bad=BAD)


def table(report: NightReport, name: str = "verdicts") -> Table:
    """List the verdicts, what is worst first."""
    columns = columns_of(
        verdict_column(),
        "test figure",
        Column("Tonight", "value", read, missing="none"),
        Column("Expected", "usual", read, missing="none"),
        Column("Change (95 %)", "change", text.signed, missing="none", spread=("low", "high")),
        "jobs why",
        missing={"figure": "all", "jobs": "none", "why": ""},
    )
    note = (
        "The change is of the night's median by what the nights before let expect; 95 of 100 nights without any change "
        "lie within its interval. An alarm takes several nights that agree. A test that failed has no figures; a "
        "figure without a reference, or of few nights, is unknown, not the same."
    )
    rows = [_row(report, verdict) for verdict in report.verdicts]
    return Table("Verdicts", columns, pd.DataFrame(rows, dtype=object), name, note)


def said(verdict: Verdict) -> str:
    return f"{verdict.word}, alarm" if verdict.alarm and verdict.word != "worse" else verdict.word


def _row(report: NightReport, verdict: Verdict) -> dict[str, object]:
    return {
        "verdict": said(verdict),
        "test": report.named(verdict.key),
        "figure": text.clean(verdict.figure, 80),
        "value": Amount(verdict.value, verdict.unit),
        "usual": Amount(verdict.usual, verdict.unit),
        **{name: getattr(verdict, name) for name in ("change", "low", "high")},
        "jobs": verdict.jobs or None,
        "why": text.clean(verdict.reason, 400),
    }
