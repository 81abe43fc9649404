"""What a page is made of: sections of text, facts, figures and tables. templates/study.html draws them."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure as Drawing

from engine.result.definition import Definition
from reports import derived, text
from reports.plots.svg import inline

NOT_MEASURED = "not measured"
NOT_RECORDED = "not recorded"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. key: of the frame, also its name in the CSV; write: a value as text.

    missing: what stands where there is no value. figure: the name of the derived figure that it is
    (metrics.DEFINITIONS), whose definition its head leads to. spread: the keys of
    the ends of its interval, written behind it; level: the value that means no difference: what has it in its
    interval, or has none, is written in grey. bad: values that are written as a warning. Raises ValueError for a figure
    that is defined nowhere.
    """

    title: str
    key: str
    write: Callable[[Any], str] = str
    numeric: bool = True
    missing: str = NOT_MEASURED
    figure: str = ""
    spread: tuple[str, str] | None = None
    level: float = math.nan
    bad: frozenset[Any] = frozenset()

    def __post_init__(self) -> None:
        if self.figure and self.figure not in derived.NAMES:
            raise ValueError(f"The column {self.title} is of a figure that metrics.py doesn't define: {self.figure}.")

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *(self.spread or ()))

    def values(self, data: pd.DataFrame) -> Iterable[tuple[Any, ...]]:
        return zip(*(data[key].tolist() for key in self.keys), strict=True)

    def cell(self, values: tuple[Any, ...], *, failed: bool) -> "Cell":
        """The cell of one row. values: those of its keys; failed: whether the row is of failed jobs only."""
        value, *ends = values
        if value is None or value == "" or (isinstance(value, float) and math.isnan(value)) or value is pd.NaT:
            return Cell("failed" if failed and self.missing else self.missing, None, missing=True)
        words = self.write(value)
        known = len(ends) == 2 and not any(math.isnan(end) for end in ends)
        if self.spread:
            words += f" ({self.write(ends[0])} to {self.write(ends[1])})" if known else " (interval not known)"
        sort = value.timestamp() if isinstance(value, datetime) else value
        quiet = not math.isnan(self.level) and not (known and self._tells(*ends))
        return Cell(words, sort, quiet=quiet, bad=value in self.bad)

    def _tells(self, low: float, high: float) -> bool:
        return low > self.level or high < self.level


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell: its text, what it sorts by, whether there is no value, whether it may be chance, whether it is bad."""

    text: str
    sort: object
    missing: bool = False
    quiet: bool = False
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under sortable heads. data is what the CSV holds: every row, also those beyond HTML_ROWS."""

    title: str
    columns: tuple[Column, ...]
    data: pd.DataFrame
    name: str
    note: str = ""
    failed: str = ""
    """Key of a boolean column that says which rows are of failed jobs only: "failed" stands for what they lack."""

    HTML_ROWS = 1000

    def rows(self) -> Iterable[list[Cell]]:
        """The first HTML_ROWS rows as cells."""
        shown = self.data.head(self.HTML_ROWS)
        failed = shown[self.failed].tolist() if self.failed else [False] * len(shown)
        cells = [
            [column.cell(values, failed=bad) for values, bad in zip(column.values(shown), failed, strict=True)]
            for column in self.columns
        ]
        return (list(row) for row in zip(*cells, strict=True))

    @property
    def left_out(self) -> int:
        """Rows that are in the CSV only."""
        return max(0, len(self.data) - self.HTML_ROWS)

    @property
    def csv(self) -> pd.DataFrame:
        return self.data[list(dict.fromkeys(key for column in self.columns for key in column.keys))]


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing with its caption and the data it was drawn from. description: for those who can't see it."""

    title: str
    caption: str
    drawing: Drawing
    csv: pd.DataFrame
    name: str
    description: str

    @property
    def svg(self) -> Markup:
        return inline(self.drawing, name=self.name, title=self.title, description=self.description)


@dataclass(frozen=True, slots=True)
class Figures:
    """Charts that stand side by side where there is room; wide ones take a row each."""

    figures: tuple[Figure, ...]
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Commands:
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """A few large figures: (value, what it is, remark). A value of None is not known, the remark says why."""

    facts: tuple[tuple[str | None, str, str], ...]


@dataclass(frozen=True, slots=True)
class Definitions:
    """Figures with their formulas (metrics.DEFINITIONS), each a place in the page under its name."""

    definitions: tuple[Definition, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """Whether something is well, by a sign, a colour and a word. details: sentences below it; links: (address,
    words).
    """

    kind: Literal["worse", "fine", "unknown"]
    word: str
    text: str
    details: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()

    @property
    def sign(self) -> str:
        """The sign tells the kinds apart without colour."""
        return {"worse": "\u25b2", "fine": "\u2713", "unknown": "?"}[self.kind]


@dataclass(frozen=True, slots=True)
class Notices:
    notices: tuple[Notice, ...]


@dataclass(frozen=True, slots=True)
class Download:
    """A CSV alone, and what is in it."""

    text: str
    csv: pd.DataFrame
    name: str


Block = Table | Figures | Paragraph | Commands | Facts | Definitions | Notices | Download


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    blocks: tuple[Block, ...]
    name: str = ""
    """The fragment in the address is unique in the page; it is made of the title if it is not given."""

    @property
    def anchor(self) -> str:
        return self.name or text.slug(self.title)


@dataclass(frozen=True, slots=True)
class Page:
    """One study's page. headline: the study in a few words, for the index; empty: nothing was measured.

    remark: what it is of, where that isn't the number of its jobs; of an empty one what is missing.
    """

    title: str
    lead: str
    sections: tuple[Section, ...]
    headline: str
    empty: bool = False
    remark: str = ""


def flops_column(title: str, key: str, data: pd.DataFrame, missing: str = NOT_MEASURED) -> Column:
    """A column of rates in one unit, that of its smallest value, so that they can be compared at a glance."""
    factor, letter = text.prefix(float(data[key].min()))
    write = lambda value: text.significant(value / factor)  # noqa: E731
    return Column(f"{title}, {letter}flop/s", key, write, missing=missing, figure="rate")


def nothing_measured(*commands: str) -> Section:
    """What a page without results says: the commands that measure, and the one that builds the report again."""
    lines = (*commands, "python -m reports build --out site/")
    return Section("Nothing measured yet", (Paragraph("Run the suite, then build this report:"), Commands(lines)))
