"""Table of a site's own thresholds."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import pandas as pd
from tabulate import tabulate

from engine.result.gate import Outcome
from reports import text
from reports.columns import columns_of
from reports.frames.acceptance import Checked
from reports.page import Column, Facts, Notice, Table
from reports.words import NOTES
from systems.acceptance import FACTORS

REMARKS: dict[Outcome, str] = {
    "pass": "all of the interval keeps the limit",
    "fail": "none of it does",
    "undecided": "it takes a run, or more jobs",
}
GOOD, BAD = frozenset({"pass"}), frozenset({"fail"})


def measured_text(checked: Checked) -> str:
    """Write what was measured with its interval, in the threshold's unit; "" where nothing was."""
    if checked.sample is None:
        return ""
    unit = checked.threshold.unit
    value, *ends = (text.significant(one / FACTORS[unit]) for one in (checked.sample.value, *checked.sample.interval))
    interval = f"{ends[0]} to {ends[1]}" if checked.sample.jobs > 1 else "interval not known"
    return f"{value} ({interval}) {unit}"


def rows(checked: Sequence[Checked]) -> list[dict[str, object]]:
    """List the thresholds as text, a row each."""
    return [
        {
            **{"outcome": one.outcome, "system": text.clean(one.system, 60), "suite": one.threshold.suite},
            **{"point": one.threshold.point, "metric": one.threshold.metric.replace("_", " ")},
            **{
                "limit": one.threshold.text,
                "measured": measured_text(one),
                "jobs": one.sample.jobs if one.sample else None,
            },
            **{"why": text.clean(one.accepted.why, 200), "of": text.clean(one.sample.of if one.sample else "", 200)},
            "basis": text.clean(one.threshold.source, 200),
        }
        for one in checked
    ]


def facts(checked: Sequence[Checked]) -> Facts:
    """Count the outcomes."""
    found = Counter(one.outcome for one in checked)
    return Facts([(f"{found[outcome]}", outcome, remark) for outcome, remark in REMARKS.items()])


def notice(checked: Sequence[Checked], address: str) -> Notice | None:
    """Say on the first page whether a site's thresholds are kept; None where it has none."""
    found = Counter(one.outcome for one in checked)
    if not found:
        return None
    kept: Literal["fine", "unknown"] = "unknown" if found["undecided"] else "fine"
    words = ", ".join(f"{found[outcome]} {outcome}" for outcome in REMARKS if found[outcome])
    systems = ", ".join(dict.fromkeys(text.clean(one.system, 60) for one in checked))
    told = f"{text.plural(len(checked), 'threshold')} of {systems}: {words}."
    links = ((address, "Each with what was measured"),)
    return Notice("worse" if found["fail"] else kept, "Acceptance", told, links=links)


def threshold_table(checked: Sequence[Checked]) -> Table:
    """Make the table of thresholds with their outcomes."""
    words = {"system": "System", "suite": "Suite", "point": "Point", "metric": "Figure", "limit": "Threshold"}
    outcome = Column("Outcome", "outcome", numeric=False, good=GOOD, bad=BAD)
    own = [Column(title, key, numeric=False) for key, title in words.items()]
    (measured, jobs, why, of) = columns_of("measured jobs why of", missing={"why": "", "of": "not run", "jobs": "none"})
    columns = (
        outcome,
        *own,
        replace(measured, missing="not run here"),
        jobs,
        why,
        of,
        Column("Source", "basis", numeric=False),
    )
    data = pd.DataFrame(rows(checked), columns=[column.key for column in columns])
    return Table("Thresholds of acceptance", columns, data, "thresholds", NOTES["thresholds"])


def as_text(checked: Sequence[Checked]) -> str:
    """Write the thresholds for a terminal."""
    heads = {"outcome": "Outcome", "system": "System", "suite": "Suite", "point": "Point", "metric": "Figure"}
    heads |= {"limit": "Threshold", "measured": "Measured", "why": "Why"}
    lines = [[str(row[key]) for key in heads] for row in rows(checked)]
    return tabulate(lines, list(heads.values()), "plain", disable_numparse=True)
