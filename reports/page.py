"""Parts of a page: sections of text, facts, figures and tables. templates/study.html draws them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
from markupsafe import Markup

from engine.result.metrics.definition import Definition
from reports import derived, text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

NOT_MEASURED = "not measured"
NOT_RECORDED = "not recorded"
BINDING = "binding"
"""The column of a frame that says how a row's ranks were badly bound; such a row is marked in every table."""
MOST_SECTIONS = 60
"""Most sections of one kind on a page; what is beyond stands in its tables."""
FEW = 4
"""More sections of one kind are folded, each to its title and a few figures."""
MOST_TOLD = 3
FOLDED = "folded"
"""Fragment of the first of them."""


@dataclass(frozen=True, slots=True)
class Column:
    """Column of a table. Raises ValueError for a figure that is defined nowhere."""

    title: str
    key: str
    """Column of the frame, and of the CSV."""
    write: Callable[[Any], str] = str
    numeric: bool = True
    missing: str = NOT_MEASURED
    """Words in place of a value."""
    figure: str = ""
    """Name of the derived figure whose definition (metrics.DEFINITIONS) the head leads to."""
    spread: tuple[str, str] | None = None
    """Keys of the ends of an interval, which is written behind the value."""
    level: float = math.nan
    """Value that makes a cell grey if it lies in the interval, or if there is none."""
    bad: frozenset[Any] = frozenset()
    """Values that are written as a warning."""
    good: frozenset[Any] = frozenset()
    """Values that are written as what one hoped for."""

    def __post_init__(self) -> None:
        if self.figure and self.figure not in derived.NAMES:
            raise ValueError(f"The column {self.title} is of a figure that metrics.py doesn't define: {self.figure}.")

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *(self.spread or ()))

    def values(self, data: pd.DataFrame) -> Iterable[tuple[Any, ...]]:
        return zip(*(data[key].tolist() for key in self.keys), strict=True)

    def cell(self, values: tuple[Any, ...], *, failed: bool) -> "Cell":
        """Return the cell of one row. values: those of its keys; failed: whether the row is of failed jobs only."""
        value, *ends = values
        if value is None or value == "" or (isinstance(value, float) and math.isnan(value)) or value is pd.NaT:
            return Cell("failed" if failed and self.missing else self.missing, None, missing=True)
        words = self.write(value)
        known = len(ends) == 2 and not any(math.isnan(end) for end in ends)
        if self.spread:
            words += f" ({self.write(ends[0])} to {self.write(ends[1])})" if known else " (interval not known)"
        sort = value.timestamp() if isinstance(value, datetime) else value
        quiet = not math.isnan(self.level) and not (known and self._tells(*ends))
        return Cell(words, sort, quiet=quiet, bad=value in self.bad, good=value in self.good)

    def _tells(self, low: float, high: float) -> bool:
        return low > self.level or high < self.level


@dataclass(frozen=True, slots=True)
class Cell:
    """Text of a cell and the value that it sorts by. A quiet one may be chance; bad is a warning, good its contrary."""

    text: str
    sort: object
    missing: bool = False
    quiet: bool = False
    bad: bool = False
    good: bool = False
    mark: str = ""
    """Fault of the whole row, shown where one points at its first cell."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under sortable heads. The CSV has every row of the data, also those beyond HTML_ROWS."""

    title: str
    columns: tuple[Column, ...]
    data: pd.DataFrame
    name: str
    note: str = ""
    failed: str = ""
    """Key of a boolean column: rows of failed jobs only, in which "failed" stands for a missing value."""

    HTML_ROWS = 1000

    def rows(self) -> Iterable[list[Cell]]:
        """Return the first HTML_ROWS rows as cells."""
        shown = self.data.head(self.HTML_ROWS)
        failed = shown[self.failed].tolist() if self.failed else [False] * len(shown)
        marks = shown[BINDING].fillna("").tolist() if BINDING in shown else [""] * len(shown)
        cells = [
            [column.cell(values, failed=bad) for values, bad in zip(column.values(shown), failed, strict=True)]
            for column in self.columns
        ]
        rows = (list(row) for row in zip(*cells, strict=True))
        return ([replace(row[0], mark=mark), *row[1:]] for row, mark in zip(rows, marks, strict=True))

    @property
    def left_out(self) -> int:
        """Return rows that are in the CSV only."""
        return max(0, len(self.data) - self.HTML_ROWS)

    @property
    def csv(self) -> pd.DataFrame:
        keys = [key for column in self.columns for key in column.keys]
        marked = BINDING in self.data and (self.data[BINDING].fillna("") != "").any()
        return self.data[list(dict.fromkeys([*keys, *([BINDING] if marked else [])]))]


@dataclass(frozen=True)
class Figure:
    """Drawing with its data, and a description for those who can't see it."""

    title: str
    caption: str
    drawing: "Drawing"
    csv: pd.DataFrame
    name: str
    description: str

    @cached_property
    def svg(self) -> Markup:
        from reports.plots.svg import inline  # matplotlib, which commands that draw nothing don't wait for

        return inline(self.drawing, name=self.name, title=self.title, description=self.description)


@dataclass(frozen=True, slots=True)
class Figures:
    """Charts side by side where there is room; wide ones take a row each."""

    figures: Sequence[Figure]
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """PNG in base64, with a description for those who can't see it."""

    title: str
    caption: str
    png: str
    description: str


@dataclass(frozen=True, slots=True)
class Pictures:
    """Strip of pictures."""

    pictures: Sequence[Picture]


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Commands:
    lines: tuple[str, ...]


KeyFact = tuple[str | None, str, str]
"""Value of a large figure, its meaning, and a remark."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A few large figures. A value of None is not known, and the remark says why."""

    facts: Sequence[KeyFact]


@dataclass(frozen=True, slots=True)
class Definitions:
    """Figures with their formulas (metrics.DEFINITIONS), each a place in the page under its name."""

    definitions: tuple[Definition, ...]


@dataclass(frozen=True, slots=True)
class Notice:
    """Sign, colour and word that tell whether something is well."""

    kind: Literal["worse", "fine", "unknown"]
    word: str
    text: str
    details: tuple[str, ...] = ()
    """Sentences below it."""
    links: tuple[tuple[str, str], ...] = ()
    """Addresses and words."""

    @property
    def sign(self) -> str:
        """Return the sign that tells the kinds apart without colour."""
        return {"worse": "\u25b2", "fine": "\u2713", "unknown": "?"}[self.kind]


@dataclass(frozen=True, slots=True)
class Notices:
    notices: tuple[Notice, ...]


@dataclass(frozen=True, slots=True)
class Download:
    """CSV alone, and its contents in words."""

    text: str
    csv: pd.DataFrame
    name: str


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """Figure of a paper with its verdict, which leads to what was measured of it."""

    where: str
    sign: str
    colour: str
    """Name of the colour that goes with the sign."""
    verdict: str
    """Verdict in words."""
    text: str
    """What the paper claims of one that was measured; of another what it waits for."""
    example: str = ""
    """One of its published values with what was measured."""
    remark: str = ""
    """Machines that it rests on, and how much of it has a verdict."""
    address: str = ""


@dataclass(frozen=True, slots=True)
class PaperRows:
    """Figures of a paper: those that were measured in full, all others in a line each."""

    name: str
    title: str
    counts: str
    measured: tuple[VerdictRow, ...] = ()
    waiting: tuple[VerdictRow, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Papers by their figures, each figure with its verdict."""

    papers: Sequence[PaperRows]


Block = Table | Figures | Pictures | Paragraph | Commands | Facts | Definitions | Notices | Download | Verdicts


@dataclass(frozen=True, slots=True)
class PageSection:
    title: str
    blocks: Sequence[Block]
    name: str = ""
    """Fragment in the address, unique in the page; made of the title if it is empty."""
    one_of_many: bool = False
    """Whether the page has a section like it for each system, series or setting."""

    @property
    def anchor(self) -> str:
        return self.name or text.slug(self.title)

    @property
    def gist(self) -> str:
        """Return its first figures in words, for its title where it is folded."""
        facts = next((block.facts for block in self.blocks if isinstance(block, Facts)), ())
        known = [f"{value} {what}" for value, what, _ in facts if value is not None]
        return ", ".join(known[:MOST_TOLD])


@dataclass(frozen=True, slots=True)
class Page:
    """Page of the report."""

    sections: Sequence[PageSection] = ()
    headline: str = ""
    """Few words for the index; empty if nothing was measured."""
    title: str = ""
    """Heading; the study's, if it is empty, and so is the lead."""
    lead: str = ""
    empty: bool = False
    remark: str = ""
    """Contents of the page, where the number of its jobs doesn't tell it; of an empty one what is missing."""
    notices: Notices | None = None
    """Warnings to be read before any figure."""

    @property
    def folds(self) -> bool:
        """Return whether sections of one kind are folded, as they are more than a few."""
        return sum(section.one_of_many for section in self.sections) > FEW

    @property
    def contents(self) -> list[tuple[str, str]]:
        """Return titles and fragments of the contents; folded sections are one entry, and a list on the page itself."""
        many = [place for place, section in enumerate(self.sections) if self.folds and section.one_of_many]
        return [
            (f"{len(many)} sections, folded", FOLDED) if place in many else (section.title, section.anchor)
            for place, section in enumerate(self.sections)
            if place not in many[1:]
        ]


def flops_column(title: str, key: str, data: pd.DataFrame, missing: str = NOT_MEASURED) -> Column:
    """Return a column of rates in one unit, that of its smallest value, so that they can be compared at a glance."""
    factor, letter = text.prefix(float(data[key].min()))
    write = lambda value: text.significant(value / factor)  # noqa: E731
    return Column(f"{title}, {letter}flop/s", key, write, missing=missing, figure="rate")


def nothing_measured(*commands: str, done: str = "measured", how: str = "Run the suite") -> PageSection:
    """Return a section that tells which commands measure, and which builds the report again."""
    lines = (*commands, "python -m reports build --out site/")
    return PageSection(f"Nothing {done} yet", (Paragraph(f"{how}, then build this report:"), Commands(lines)))
