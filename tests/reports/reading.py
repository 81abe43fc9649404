"""Pages and tables as a reader finds them."""

import csv
import re
from collections.abc import Iterable, Sequence
from html import unescape
from pathlib import Path

from sample_checks import save_checks
from sample_contests import save_contests
from sample_predictions import save_predictions
from sample_results import save

from engine.planning.document import GridPlan
from engine.result.schema import Result
from engine.result.schema.gpu_check import GpuCheck
from engine.result.schema.peers import PeersResult
from engine.validation.document import Validation
from reports.site import build


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
    return tuple(re.findall(r"\d[\d.,]*", text))


def built(
    folder: Path,
    results: Iterable[Result] = (),
    *,
    contests: Sequence[PeersResult] = (),
    checks: Iterable[GpuCheck] = (),
    predictions: Sequence[GridPlan | Validation] = (),
) -> Path:
    """Build a report of these in folder/site, from files in folder/r."""
    made = folder / "r"
    made.mkdir(parents=True, exist_ok=True)
    save(list(results), made)
    save_contests(contests, made)
    save_checks(checks, made)
    save_predictions(predictions, made)
    return build([made], folder / "site")[0].parent
