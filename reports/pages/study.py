"""A study: which runs belong to it, and how its page is made of them.

To add a page, add a module to reports/pages with an object `STUDY` of this class.
"""

import importlib
import pkgutil
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from engine.result import ANOTHER_COMMIT, UNTUNED
from reports import pages, text
from reports.frames.frame import Frames
from reports.page import BINDING, Notice, Notices, Page, nothing_measured
from reports.words import STUDIES, Words


@dataclass(frozen=True, slots=True)
class Study:
    """One page of the report."""

    name: str
    """Name of its file, and of its words in studies.yaml."""
    order: float
    """Place in the menu."""
    selects: Callable[[pd.DataFrame], "pd.Series[bool]"]
    """Find its rows in a frame of everything: of runs, contests or checks."""
    build: Callable[[Frames, Frames], Page]
    """Make the page, also of no rows, from the frames with its rows only and from those of everything."""
    rows_of: Literal["runs", "contests", "checks"] = "runs"
    shared: bool = False
    """Whether its rows belong to other studies; one that is in no other is of no study."""

    def rows(self, everything: Frames) -> pd.DataFrame:
        table: pd.DataFrame = getattr(everything, self.rows_of)
        return table[self.selects(table)]

    def page(self, everything: Frames) -> Page:
        rows = self.rows(everything)
        other: dict[str, Any] = {self.rows_of: rows}
        mine = everything.of(rows) if self.rows_of == "runs" else replace(everything, **other)
        page, told = self.build(mine, everything), binding_notices(rows)
        nothing = [nothing_measured(*self.words.run)] if self.words.run else []
        return replace(
            page,
            title=self.words.title,
            lead=page.lead or self.words.lead,
            sections=page.sections or nothing,
            notices=Notices(told) if told else None,
        )

    @property
    def words(self) -> Words:
        return STUDIES[self.name]


def trainings_of(study: str) -> Callable[[pd.DataFrame], "pd.Series[bool]"]:
    return lambda runs: (runs["study"] == study) & (runs["kind"] == "train")


def contests_where(own: Callable[[pd.DataFrame], "pd.Series[bool]"]) -> Callable[[pd.DataFrame], "pd.Series[bool]"]:
    """Select contests with other libraries.

    Those with the untuned engine are on the page of kernels; those with another commit, which ci/nightly judges, are on
    none.
    """
    return lambda ran: ~ran["peer"].isin([UNTUNED, ANOTHER_COMMIT]) & own(ran)


def all_studies() -> tuple[Study, ...]:
    """Import every study of reports/pages, in the order of the menu."""
    modules = (importlib.import_module(f"{pages.__name__}.{m.name}") for m in pkgutil.iter_modules(pages.__path__))
    found = (module.STUDY for module in modules if hasattr(module, "STUDY"))
    return tuple(sorted(found, key=lambda study: study.order))


WHY = "Their figures say what these bindings reach, not what the machine does."
IN_TABLES = "▲ marks them in tables."
MOST_TOLD = 6
NAMED = ("kind", "peer", "model", "ranks", "grid", "system")
"""Columns that tell jobs from others in a sentence, as far as a frame has them."""


def binding_notices(rows: pd.DataFrame) -> tuple[Notice, ...]:
    """Return a notice on the badly bound jobs of a page, and how they were bound; none where all are well."""
    bad = badly_bound(rows)
    if bad.empty:
        return ()
    keys = [key for key in NAMED if key in bad]
    groups = list(bad.groupby([*keys, BINDING], dropna=False, sort=False))
    told = [_told(dict(zip([*keys, BINDING], values, strict=True)), len(some)) for values, some in groups[:MOST_TOLD]]
    more = [f"{len(groups) - MOST_TOLD} more are in the table of where every job comes from."]
    details = (*told, *(more if len(groups) > MOST_TOLD else ()))
    return (
        Notice(
            "worse", "Badly bound:", f"{len(bad):,} of {text.plural(len(rows), 'job')} here. {WHY} {IN_TABLES}", details
        ),
    )


def badly_bound(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows[BINDING].fillna("") != ""] if BINDING in rows else rows.head(0)


def _told(job: dict[Hashable, Any], jobs: int) -> str:
    what = ", ".join(str(job[key]) for key in ("kind", "peer", "model") if job.get(key))
    where = f" on {text.plural(int(job['ranks']), 'device')}" if "ranks" in job else ""
    grid = f", grid {job['grid']}" if job.get("grid") else ""
    of = f" of {job['system']}" if job.get("system") else ""
    return f"{what}{where}{of}{grid} ({text.plural(jobs, 'job')}). {job[BINDING]}"
