"""What a reader finds in pages and tables."""

import csv
import re
from html import unescape
from pathlib import Path


def words(html: str) -> str:
    """The text of HTML, without its tags, style and script."""
    return " ".join(unescape(re.sub(r"<(style|script)>.*?</\1>|<[^>]*>", " ", html, flags=re.DOTALL)).split())


def in_order(text: str, *parts: str, within: int = 100) -> bool:
    """Whether these parts, numbers and names, follow one another in the text, each within so many letters."""
    gap = rf".{{0,{within}}}?"
    return re.search(gap.join(map(re.escape, parts)), " ".join(text.split()), re.DOTALL) is not None


def table(page: Path, name: str) -> list[dict[str, str]]:
    """The rows of a CSV beside a page, or in a site's folder."""
    folder = page if page.is_dir() else page.parent
    with (folder / "data" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def numbers(text: str) -> tuple[str, ...]:
    """The numbers in a sentence."""
    return tuple(re.findall(r"\d[\d.,]*", text))
