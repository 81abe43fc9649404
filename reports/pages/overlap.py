"""Overlap: what each way to hide communication gains (par4d IV and Fig. 3, 4; axonn-sc24 V-D and Fig. 5)."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import pandas as pd

from reports import text
from reports.columns import NO_BASE, failures, provenance
from reports.figures import overlaps
from reports.frames.frame import SETTING, Frames, series_title
from reports.frames.overlaps import GREATEST, NONE, Setting, most_exposed, settings, short
from reports.frames.points import runs_of
from reports.frames.sides import no_core_left, take_turns
from reports.page import (
    MOST_SECTIONS,
    NOT_RECORDED,
    Block,
    Facts,
    Figures,
    KeyFact,
    Page,
    PageSection,
    Paragraph,
    nothing_measured,
)
from reports.pages.series import published_gains
from reports.pages.study import Study
from reports.read import published
from reports.words import STUDIES


def build(mine: Frames, everything: Frames) -> Page:
    found = settings(mine)
    drawn = sorted(found, key=lambda setting: -len(setting.variants))[:MOST_SECTIONS]
    sections = [_overview(found, len(drawn)) if found else nothing_measured(*STUDIES["overlap"].run)]
    sections += [_section(name, title, setting, mine) for name, title, setting in text.titled(drawn, _title)]
    if found:
        shown = pd.concat([setting.runs for setting in drawn])
        rest = mine.runs.drop(runs_of(mine.runs, shown, SETTING).index)
        sections.append(PageSection("Details", (*failures(rest, "further"), provenance(mine.runs))))
    sections.append(PageSection("Published figures", (published_gains(published.gains("overlap")),)))
    return Page(sections, _headline(found), empty=not found)


STUDY = Study("overlap", 3, lambda runs: runs["kind"] == "ablation", build)


def _title(setting: Setting) -> str:
    first = setting.first
    where = text.plural(int(first["ranks"]), "device")
    if setting.nodes == setting.nodes:
        where += f" on {text.plural(int(setting.nodes), 'node')}"
    if first["network"]:
        where += f" over {first['network']}"
    tuning = f" ({first['tuning']})" if first["tuning"] else ""
    return text.clean(f"{first['model']} on {first['grid']}, {where}, {series_title(first)}{tuning}", 160)


def _headline(found: Sequence[Setting]) -> str:
    """Return the range over all layouts, not the best of them."""
    most = [row for setting in found if (row := setting.fullest()) is not None and row["faster"] == row["faster"]]
    if not most:
        return "no gain measured"
    faster = sorted(row["faster"] for row in most)
    if len(most) > 1:
        span = f"{text.times(faster[0])} to {text.times(faster[-1])}"
        return f"{span} as fast as without, median {text.times(median(faster))}, on {len(most)} layouts"
    ends = f"{text.times(most[0]['faster_low'])} to {text.times(most[0]['faster_high'])}"
    interval = f" ({ends})" if "nan" not in ends else ""
    return f"{text.times(faster[0])}{interval} as fast as without, on one layout"


def _overview(found: Sequence[Setting], drawn: int) -> PageSection:
    return PageSection("All layouts", (overlaps.layouts(found, drawn), overlaps.by_grid(found)))


def _section(name: str, title: str, setting: Setting, frames: Frames) -> PageSection:
    blocks: list[Block] = []
    if len(setting.variants):
        blocks.append(_facts(setting))
        for key, says in (("shared", take_turns), ("crowded", no_core_left)):
            blocks += [Paragraph(says(words)) for words in dict.fromkeys(setting.variants[key]) if words]
        drawn = (overlaps.steps(name, setting), *overlaps.timeline(name, setting, frames.sides))
        blocks += [Figures(drawn, wide=True), overlaps.variants(name, setting)]
    else:
        blocks.append(Paragraph("Not measured: no job of this layout ended well."))
    return PageSection(title, (*blocks, *failures(setting.runs, name)), f"series-{name}", one_of_many=True)


def _facts(setting: Setting) -> Facts:
    most = setting.fullest()
    if most is None:
        missing = "no run with overlap"
        return Facts(((None, "as fast as without", missing), (None, "share hidden", missing)))
    return Facts((*_gained(setting, most), *_hidden(most, setting.axes)))


def _gained(setting: Setting, most: "pd.Series[Any]") -> tuple[KeyFact, ...]:
    done, all_of_them = setting.jobs
    jobs = text.plural(done, "job") if done == all_of_them else f"{done} of {all_of_them} jobs"
    step: KeyFact = (text.seconds(most["time_s"]), "a step with", ", ".join(short(most["overlap"]).split(",")))
    if most["ratio"] != most["ratio"]:
        return (None, "as fast as without", NO_BASE), step
    none = setting.variants.set_index("overlap")["time_s"][NONE]
    rounds = text.plural(int(most["rounds"]), "paired round")
    return (
        (text.times(most["faster"]), "as fast as without", _interval(most, "faster", text.times) + rounds),
        (text.gain(most["gain"]), "of the time saved", _interval(most, "gain", text.gain) + rounds),
        (text.seconds(none), "a step without", f"median over {jobs}"),
        step,
    )


def _interval(row: "pd.Series[Any]", key: str, write: Callable[[float], str]) -> str:
    low, high = row[f"{key}_low"], row[f"{key}_high"]
    return f"{write(low)} to {write(high)}, " if low == low else ""


def _hidden(most: "pd.Series[Any]", axes: Sequence[str]) -> tuple[KeyFact, KeyFact, KeyFact]:
    """Say what the fullest variant hides, how near it is to its bound, and to the greatest gain."""
    hidden: KeyFact = (None, "share hidden", "not recorded, or no communication")
    if most["share_hidden"] == most["share_hidden"]:
        waits = f"{text.seconds(most['collectives_s'])} of a step stay exposed"
        if exposed := most_exposed(most, axes):
            waits += f", most along {exposed[0]}"
        hidden = (text.percent(most["share_hidden"]), "share hidden", waits)
    bound: KeyFact = (None, "step by its bound", NOT_RECORDED)
    if most["step_by_bound"] == most["step_by_bound"]:
        by = f"bound by {most['bound_by']}, {text.seconds(most['bound_s'])}"
        bound = (text.times(most["step_by_bound"]), "step by its bound", by)
    greatest: KeyFact = (None, "of the greatest gain", "not recorded, or nothing to gain")
    if (share := most[GREATEST]) == share:
        sure = most[f"{GREATEST}_low"] > 0 or most[f"{GREATEST}_high"] < 0
        remark = _interval(most, GREATEST, text.gain) + "down to the bound of a step"
        remark += "" if sure else ", which may be chance"
        remark += "; more than all: the bound was measured too high" if share > 1 else ""
        greatest = (text.gain(share), "of the greatest gain", remark)
    return hidden, bound, greatest
