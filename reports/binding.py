"""Jobs whose ranks were badly bound: their figures are of that, and each page that shows one says so at its top."""

from collections.abc import Hashable
from typing import Any

import pandas as pd

from engine.result.schema.machine import Bindings
from reports import text
from reports.page import BINDING, Notice

WHY = "Their figures say what these bindings reach, not what the machine does. ▲ marks them in tables."
MOST_TOLD = 6
NAMED = ("kind", "peer", "model", "ranks", "grid", "system")
"""Columns that tell jobs from others in a sentence, as far as a frame has them."""


def words(bindings: Bindings | None) -> str:
    """Return the faults of bindings in sentences; "" where there are none, or nothing was recorded."""
    return text.clean(" ".join(fault.said for fault in bindings.faults), 1600) if bindings else ""


def notices(rows: pd.DataFrame) -> tuple[Notice, ...]:
    """Return a notice on the badly bound jobs of a page, and how they were bound; none where all are well."""
    bad = badly_bound(rows)
    if bad.empty:
        return ()
    keys = [key for key in NAMED if key in bad]
    groups = list(bad.groupby([*keys, BINDING], dropna=False, sort=False))
    told = [_told(dict(zip([*keys, BINDING], values, strict=True)), len(some)) for values, some in groups[:MOST_TOLD]]
    more = [f"{len(groups) - MOST_TOLD} more are in the table of where every job comes from."]
    details = (*told, *(more if len(groups) > MOST_TOLD else ()))
    return (Notice("worse", "Badly bound:", f"{len(bad):,} of {text.plural(len(rows), 'job')} here. {WHY}", details),)


def badly_bound(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows[BINDING].fillna("") != ""] if BINDING in rows else rows.head(0)


def _told(job: dict[Hashable, Any], jobs: int) -> str:
    what = ", ".join(str(job[key]) for key in ("kind", "peer", "model") if job.get(key))
    where = f" on {text.plural(int(job['ranks']), 'device')}" if "ranks" in job else ""
    grid = f", grid {job['grid']}" if job.get("grid") else ""
    of = f" of {job['system']}" if job.get("system") else ""
    return f"{what}{where}{of}{grid} ({text.plural(jobs, 'job')}). {job[BINDING]}"
