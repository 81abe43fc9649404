"""Pages as HTML: one self-contained file each, style and script inside, everything from results escaped."""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

import pandas as pd
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from reports import text
from reports.page import FOLDED, Block, Cell, Column, Download, Figure, Figures, Notices, Page, Table
from reports.pages.front import Front
from reports.pages.index import Card

LONG = 40
"""Letters from which a text in a table may be broken into lines."""
_HERE = Path(__file__).parent


class Renderer:
    """Renderer of the pages of one report. The menu has the name and title of each page."""

    def __init__(self, menu: Iterable[tuple[str, str]], *, results: int, built: datetime) -> None:
        script = "".join((_HERE / "static" / name).read_text() for name in ("sort.js", "fold.js"))
        self._environment = Environment(loader=FileSystemLoader(_HERE / "templates"), autoescape=True, trim_blocks=True)
        self._environment.globals.update(
            css=Markup((_HERE / "static" / "report.css").read_text()),
            script=Markup(script),
            script_hash="sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            menu=tuple(menu),
            built=text.moment(built),
            total=text.plural(results, "result"),
            kind=_kind,
            td=_td,
            folded_id=FOLDED,
        )

    def study(self, name: str, page: Page, files: Mapping[str, str]) -> str:
        """Draw a study's page. files have the address of the CSV of each table and figure, by its name."""
        return self._environment.get_template("study.html").render(page=page, here=name, files=files)

    def index(
        self, page: Page, verdicts: Front, notices: Notices, cards: Iterable[Card], files: Mapping[str, str]
    ) -> str:
        known = {"page": page, "here": "", "files": files, "cards": list(cards), "block": notices, "front": verdicts}
        return self._environment.get_template("index.html").render(known)


def data_blocks(page: Page) -> list[Table | Figure | Download]:
    """List every table and figure of a page, and what else has a CSV."""
    found: list[Table | Figure | Download] = []
    for section in page.sections:
        for block in section.blocks:
            if isinstance(block, Table | Download):
                found.append(block)
            elif isinstance(block, Figures):
                found.extend(block.figures)
    return found


def _kind(block: Block) -> str:
    return type(block).__name__.lower()


def _td(cell: Cell, column: Column) -> Markup:
    wraps = not column.numeric and len(cell.text) > LONG
    styles = {
        "n": column.numeric,
        "w": wraps,
        "none": cell.missing,
        "q": cell.quiet,
        "bad": cell.bad,
        "good": cell.good,
    }
    names = " ".join(name for name, on in styles.items() if on)
    classes = f' class="{names}"' if names else ""
    sort = "" if cell.sort is None or not column.numeric else f' data-s="{escape(cell.sort)}"'
    said = escape(cell.mark)
    mark = f' <span class="warn" role="img" title="{said}" aria-label="{said}">\u25b2</span>' if cell.mark else ""
    return Markup(f"<td{classes}{sort}>{escape(cell.text)}{mark}</td>")


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(table: pd.DataFrame) -> str:
    """Return the frame as CSV text. A string that a spreadsheet would run gets an apostrophe in front; numbers stay."""
    names = [_safe(str(name)) for name in table]
    return table.astype(object).map(_value).to_csv(index=False, header=names, lineterminator="\n")


def _value(value: object) -> object:
    if isinstance(value, str):
        return _safe(value)
    if isinstance(value, pd.Timestamp):
        return value.isoformat()
    return "" if value is None or value is pd.NaT or value != value else value


def _safe(value: str) -> str:
    return f"'{value}" if value.startswith(_FORMULA) else value
