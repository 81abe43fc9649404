"""A study: which runs belong to it, and how its page is made of them.

To add a page, add a module to reports/studies with an object `STUDY` of this class.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import pandas as pd

from engine.result import ANOTHER_COMMIT, UNTUNED
from reports import binding, studies
from reports.frame import Frames
from reports.page import Notices, Page


@dataclass(frozen=True, slots=True)
class Study:
    """One page of the report.

    name is also the file's name, and order the place in the menu. selects finds the study's rows in a frame of
    everything: that of runs, of contests or of checks. build makes the page from the frames with these rows only and
    from those of everything; it is called also when there are no rows. A shared study's rows belong to other studies,
    and one that is in no other is of no study.
    """

    name: str
    title: str
    summary: str
    order: float
    selects: Callable[[pd.DataFrame], "pd.Series[bool]"]
    build: Callable[[Frames, Frames], Page]
    rows_of: Literal["runs", "contests", "checks"] = "runs"
    shared: bool = False

    def rows(self, everything: Frames) -> pd.DataFrame:
        table: pd.DataFrame = getattr(everything, self.rows_of)
        return table[self.selects(table)]

    def page(self, everything: Frames) -> Page:
        rows = self.rows(everything)
        other: dict[str, Any] = {self.rows_of: rows}
        mine = everything.of(rows) if self.rows_of == "runs" else replace(everything, **other)
        page, told = self.build(mine, everything), binding.notices(rows)
        return replace(page, notices=Notices(told)) if told else page


def trainings_of(study: str) -> Callable[[pd.DataFrame], "pd.Series[bool]"]:
    return lambda runs: (runs["study"] == study) & (runs["kind"] == "train")


def contests_where(own: Callable[[pd.DataFrame], "pd.Series[bool]"]) -> Callable[[pd.DataFrame], "pd.Series[bool]"]:
    """The tuned engine's contests with the untuned one are on the page of kernels; those with another commit, which
    ci/nightly judges, are on none.
    """
    return lambda ran: ~ran["peer"].isin([UNTUNED, ANOTHER_COMMIT]) & own(ran)


def all_studies() -> tuple[Study, ...]:
    """Import every study of reports/studies, in the order of the menu."""
    modules = (importlib.import_module(f"{studies.__name__}.{m.name}") for m in pkgutil.iter_modules(studies.__path__))
    return tuple(sorted((module.STUDY for module in modules), key=lambda study: study.order))
