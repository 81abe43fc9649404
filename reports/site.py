"""Build the report: every study's page, the first page and the CSV files, put in place when all are written."""

import shutil
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from engine.errors import RunError, UsageError
from reports.figures.acceptance import notice
from reports.frames.acceptance import check
from reports.frames.frame import of_loaded
from reports.frames.reproduction import judge_everything
from reports.html import Renderer, data_blocks, to_csv
from reports.nights import page as nights_page
from reports.page import Notices, Page
from reports.pages import methods, reproduction
from reports.pages.front import front
from reports.pages.index import card, index
from reports.pages.study import all_studies
from reports.read.load import Loaded, load
from systems import acceptance


def build(folders: Sequence[Path], out: Path) -> tuple[Path, Loaded]:
    """Read the results under the folders and write the report; returns its first page and what was read.

    Raises UsageError for a folder that isn't there or an `out` that can't be one, RunError if writing fails.
    """
    check_out(out)
    loaded = load(folders)
    write(pages(loaded), out)
    return out / "index.html", loaded


def check_out(out: Path) -> None:
    blocking = next((part for part in (out, *out.parents) if part.exists() and not part.is_dir()), None)
    if blocking is not None:
        raise UsageError(f"--out is the folder to write to, but {blocking} is a file: name another folder.")


def pages(loaded: Loaded) -> dict[str, str]:
    """Return every file of the report: its path in the site to its text, the first page last."""
    everything = of_loaded(loaded)
    runs = everything.runs
    studies = all_studies()
    nightly = nights_page.pages([one for one in loaded.histories if one.nightly])
    menu = [(one.name, one.page.title) for one in nightly]
    menu += [*((study.name, study.words.title) for study in studies), (methods.NAME, methods.TITLE)]
    renderer = Renderer(menu, results=len(loaded.statuses), built=datetime.now(UTC))
    files: dict[str, str] = {}
    cards = []
    shown = pd.Series(False, index=runs.index)
    for study in studies:
        rows, page = study.rows(everything), study.page(everything)
        if study.rows_of == "runs" and not study.shared:
            shown |= runs.index.isin(rows.index)
        files[f"{study.name}.html"] = renderer.study(study.name, page, _add_data(files, study.name, page))
        if study.name != reproduction.STUDY.name:  # of which the first page is the summary
            cards.append(card(study, page, rows))
    for one in nightly:
        files[f"{one.name}.html"] = renderer.study(one.name, one.page, _add_data(files, one.name, one.page))
    files[f"{methods.NAME}.html"] = renderer.study(methods.NAME, methods.page(), {})
    of_jobs = ["system", "study", "status", "end"]
    first = index(loaded, runs[~shown], pd.concat([runs[of_jobs], everything.contests[of_jobs]]))
    cards.sort(key=lambda card: card.empty)  # what was measured comes first
    accepted = notice(check(everything, acceptance.known()), f"{reproduction.STUDY.name}.html#acceptance")
    notices = Notices((*([accepted] if accepted else []), *(one.notice for one in nightly)))
    files["index.html"] = renderer.index(
        first, front(judge_everything(everything)), notices, cards, _add_data(files, "index", first)
    )
    return files


def _add_data(files: dict[str, str], study: str, page: Page) -> dict[str, str]:
    """Add the CSV of every table and figure to the files; returns their addresses by name."""
    addresses = {}
    for block in data_blocks(page):
        addresses[block.name] = f"data/{study}-{block.name}.csv"
        files[addresses[block.name]] = to_csv(block.csv)
    return addresses


def write(files: dict[str, str], out: Path) -> None:
    """Write all files beside their places, then rename them into place one by one. Raises RunError."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=out))
        try:
            for name, content in files.items():
                path = draft / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(content, encoding="utf-8", errors="replace")
            (out / "data").mkdir(exist_ok=True)
            for name in files:
                (draft / name).replace(out / name)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise RunError(f"The report can't be written to {out}: {error.strerror or error}.") from None
