"""Optimisations: what grid, tuned products and overlap gain, each over those before it (axonn-sc24 VII-A, Fig. 7)."""

from typing import Any

import pandas as pd

from reports import text
from reports.columns import failures, provenance
from reports.figures.optimisations import overview, sides_table, steps
from reports.frames.frame import Frames, series_title
from reports.frames.optimisations import KIND, Setting, published_gains, settings
from reports.page import MOST_SECTIONS, Facts, Figures, KeyFact, Page, PageSection, Paragraph, nothing_measured
from reports.pages import series
from reports.pages.study import Study
from reports.words import STUDIES


def build(mine: Frames, everything: Frames) -> Page:
    found = settings(mine)
    sections = [PageSection("All settings", (overview(found),)) if found else nothing_measured(*STUDIES[KIND].run)]
    sections += [_section(*one) for one in text.titled(found[:MOST_SECTIONS], _title)]
    if len(mine.runs):
        sections.append(PageSection("Details", (*failures(mine.runs, "all"), provenance(mine.runs))))
    sections.append(PageSection("Published figures", (series.published_gains(published_gains()),)))
    return Page(sections, _headline(found), empty=mine.runs.empty)


STUDY = Study(KIND, 3.25, lambda runs: runs["kind"] == KIND, build)


def _title(setting: Setting) -> str:
    row = setting.first
    where = f"{text.plural(int(row['ranks']), 'device')}, {series_title(row)}"
    network = f" over {row['network']}" if row["network"] else ""
    return text.clean(f"{row['model']} on {where}{network}", 160)


def _headline(found: list[Setting]) -> str:
    """Say what all optimisations save together, from the setting that gains least to the one that gains most."""
    saved = sorted(setting.sides.iloc[-1]["total"] for setting in found)
    saved = [one for one in saved if one == one]
    if not saved:
        return "no job ended well"
    span = text.gain(saved[0]) if len(saved) == 1 else f"{text.gain(saved[0])} to {text.gain(saved[-1])}"
    return f"{span} of the baseline's time saved in {text.plural(len(saved), 'setting')}"


def _section(name: str, title: str, setting: Setting) -> PageSection:
    rows = [row for _, row in setting.sides.iterrows()]
    facts = [*(_saved(row) for row in rows[1:]), _in_all(rows[-1])]
    chosen = str(setting.first["grid_is"])
    said = (Paragraph(f"The grid of the performance model was {chosen}."),) if chosen else ()
    blocks = (Facts(facts), *said, Figures((steps(name, setting),), wide=True), sides_table(name, setting))
    return PageSection(title, blocks, f"setting-{name}", one_of_many=True)


def _saved(row: "pd.Series[Any]") -> KeyFact:
    known = row["saved"] == row["saved"]
    published = f"; published {row['published']}" if row["published"] else ""
    remark = f"{row['verdict']}, {_span(row, 'saved')}{published}"
    return text.gain(row["saved"]) if known else None, f"saved by {row['side']}", remark


def _in_all(row: "pd.Series[Any]") -> KeyFact:
    known = row["total"] == row["total"]
    rounds = text.plural(int(row["rounds"]), "round")
    return text.gain(row["total"]) if known else None, "saved in all", f"{_span(row, 'total')}, {rounds}"


def _span(row: "pd.Series[Any]", key: str) -> str:
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    return f"{text.gain(low)} to {text.gain(high)}" if low == low and high == high else "interval not known"
