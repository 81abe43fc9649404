"""A study: which runs belong to it, and how its page is made of them.

To add a page, add a module to reports/studies with an object `STUDY` of this class.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from reports import studies
from reports.frame import Frames
from reports.page import Page


@dataclass(frozen=True, slots=True)
class Study:
    """One page of the report.

    name: also the file's name. selects: for the frame of all runs, which are this study's. build: from those runs
    and from all of them to the page; called also when there are none. order: its place in the menu. shared: its runs
    are those of other studies, and one that is in no other is of no study.
    """

    name: str
    title: str
    summary: str
    order: int
    selects: Callable[[pd.DataFrame], "pd.Series[bool]"]
    build: Callable[[Frames, Frames], Page]
    shared: bool = False


@dataclass(frozen=True, slots=True)
class ContestStudy:
    """A page of contests with peers instead of runs.

    selects: for the frame that contests.frame makes of all of them, which are its own; build: the page from those.
    """

    name: str
    title: str
    summary: str
    order: int
    selects: Callable[[pd.DataFrame], "pd.Series[bool]"]
    build: Callable[[pd.DataFrame], Page]


@dataclass(frozen=True, slots=True)
class CheckStudy:
    """A page of what ci/gpu has found. build: from the frame that gpu_checks.frame makes of all its runs."""

    name: str
    title: str
    summary: str
    order: int
    build: Callable[[pd.DataFrame], Page]


AnyStudy = Study | ContestStudy | CheckStudy


def trainings_of(study: str) -> Callable[[pd.DataFrame], "pd.Series[bool]"]:
    return lambda runs: (runs["study"] == study) & (runs["kind"] == "train")


def all_studies() -> tuple[AnyStudy, ...]:
    """Every study of reports/studies, in the order of the menu."""
    modules = (importlib.import_module(f"{studies.__name__}.{m.name}") for m in pkgutil.iter_modules(studies.__path__))
    return tuple(sorted((module.STUDY for module in modules), key=lambda study: study.order))
