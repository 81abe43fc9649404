"""Samples: images that a network makes after more and more steps of its training, in strips."""

from typing import Any

import pandas as pd

from reports import text
from reports.columns import failures, provenance
from reports.figures.scaling import spread_out
from reports.frames.frame import Frames
from reports.frames.jobs import grouped
from reports.page import MOST_SECTIONS, Block, Page, PageSection, Paragraph, Picture, Pictures
from reports.pages.study import Study
from reports.words import NOTES

MOST_PICTURES = 12
"""Most pictures of a strip; fewer where all strips together would have more than MOST_BYTES."""
MOST_BYTES = 8e6
FEWEST_PICTURES = 2
SAMPLERS = {"ddim": "DDIM", "ddpm": "DDPM"}
_OF_RUN = ["system", "partition", "variant", "model"]
_TRAINING = [*_OF_RUN, "trained"]


def build(mine: Frames, everything: Frames) -> Page:
    """Make a strip for each training and sampler, from the first steps to the last: of several sheets alike the newest
    is shown.
    """
    if mine.runs.empty:
        return Page(empty=True)
    done = mine.runs.loc[mine.runs["status"] == "ok", ["end", *_OF_RUN]]
    sheets = mine.samples.join(done, on="run", how="inner").sort_values("end")
    sheets = sheets.drop_duplicates([*_TRAINING, "trained_steps", "sampler", "steps"], keep="last")
    sheets = sheets.sort_values(["trained_steps", "steps"])
    trained = grouped(sheets, _TRAINING, _title)
    most = _most_pictures(sheets, len(trained))
    sections = [
        PageSection(title, [*_strips(rows, most), Paragraph(NOTES["one_photograph"])], name, one_of_many=True)
        for name, title, rows in trained[:MOST_SECTIONS]
    ]
    rest = [title for _, title, _ in trained[MOST_SECTIONS:]]
    others = [Paragraph(f"Left out: {'; '.join(rest)}.")] if rest else []
    details = PageSection("Details", [*others, *failures(mine.runs, "all_jobs"), provenance(mine.runs)])
    return Page([*sections, details], _headline(sheets))


def _selects(runs: pd.DataFrame) -> "pd.Series[bool]":
    """Images belong here whoever sampled them, and so does the training of this study."""
    return (runs["kind"] == "sample") | (runs["study"] == "samples")


STUDY = Study("samples", 4.5, _selects, build)


def _headline(sheets: pd.DataFrame) -> str:
    if sheets.empty:
        return "no images yet"
    return f"{text.plural(len(sheets), 'sheet')}, the last after {text.plural(sheets['trained_steps'].max(), 'step')}"


def _title(sheet: "pd.Series[Any]") -> str:
    return f"Images of {text.title(sheet['system'], sheet['partition'], sheet['model'], sheet['variant'])}"


def _most_pictures(sheets: pd.DataFrame, trainings: int) -> int:
    """Say how many pictures a strip may have for all of them to be of a size that a browser likes."""
    of_one = sheets["png"].str.len().mean() if len(sheets) else 0.0
    return max(FEWEST_PICTURES, min(MOST_PICTURES, int(MOST_BYTES / (of_one * trainings or 1.0))))


def _strips(sheets: pd.DataFrame, most: int) -> list[Block]:
    return [block for _, of_one in sheets.groupby("sampler") for block in _strip(of_one, most)]


def _strip(sheets: pd.DataFrame, most: int) -> list[Block]:
    chosen = spread_out(sheets, most)
    strip = Pictures([_picture(row) for _, row in chosen.iterrows()])
    few = Paragraph(f"{len(chosen)} of {len(sheets)} shown, spread evenly over the training.")
    return [strip, few] if len(chosen) < len(sheets) else [strip]


def _picture(sheet: "pd.Series[Any]") -> Picture:
    after = f"After {text.plural(sheet['trained_steps'], 'step')}"
    sampler = f"{SAMPLERS[sheet['sampler']]}, {text.plural(sheet['steps'], 'step')}"
    side = sheet["side"]
    said = (
        f"{text.plural(sheet['images'], 'image')} of {side} x {side} pixels, sampled by {sampler}. {after} of training."
    )
    return Picture(after, sampler, sheet["png"], said)
