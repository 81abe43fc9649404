"""Pictures and tables of the overlap study: variants as bars (par4d Fig. 3), a step (par4d Fig. 4), every layout."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from reports import text
from reports.columns import NO_BASE, columns_of, first
from reports.frames.overlaps import FLAGS, GREATEST, NONE, WORDS, Setting, flags, most_exposed, short
from reports.frames.sides import RATIOS, Sides, ranges, ratio_column
from reports.page import NOT_MEASURED, NOT_RECORDED, Column, Figure, Table
from reports.plots.canvas import WIDE
from reports.plots.rows import Bars, Row, stacked
from reports.plots.timeline import Panel, describe_steps, draw_steps, list_spans
from reports.read import published
from reports.words import NOTES

HEADINGS = {"ladder": "one after the other", "alone": "each alone", "other": "other combinations"}


def steps(name: str, setting: Setting) -> Figure:
    """Draw compute, exposed communication, bound and gains of every variant (par4d Fig. 3, axonn-sc24 Fig. 5)."""
    ordered = setting.variants
    theirs = _published(str(setting.first["system"]))
    recorded = ordered["blocking_s"].notna()
    parts = [
        Bars("compute", ordered["compute_s"].tolist(), "blue"),
        Bars("blocking", ordered["blocking_s"].tolist(), "gold"),
        Bars("other exposed", ordered["exposed_s"].where(recorded, ordered["collectives_s"]).tolist(), "red"),
    ]
    notes = [_notes(row, theirs) for _, row in ordered.iterrows()]
    paper = theirs["paper"].iloc[0]
    heads = ("step", "saved over the\none before", paper, "saved\nover none", paper)
    kept = [place for place in range(len(heads)) if any(row[place] for row in notes)]
    drawn = [
        Row(
            row["label"],
            row["time_s_low"],
            row["time_s_high"],
            row["bound_s"],
            HEADINGS[row["place"]] if begins else "",
            tuple(note[place] for place in kept),
            tuple(at for at, place in enumerate(kept) if _unsure(row, place)),
        )
        for begins, note, (_, row) in zip(~ordered.duplicated("place"), notes, ordered.iterrows(), strict=True)
    ]
    title = "A step by overlap"
    caption = (
        "Medians over jobs of the mean step, on rank 0; whiskers span the rounds. Blocking and other waits are both "
        "exposed. A gain is 1 less the paired ratio of its row in the table below; in grey it may be chance. "
        + NOTES["intervals"]
    )
    if {2, 4} & set(kept):
        caption += f" Grey too: the published gains, {_of_what(theirs)}."
    said = [f"{row['label']}: {text.seconds(row['time_s'])}" for _, row in ordered.iterrows()]
    drawing = stacked(
        parts,
        drawn,
        "seconds per iteration on rank 0",
        columns=[heads[place] for place in kept],
        mark="bound of the step",
        width=WIDE,
    )
    return Figure(title, caption, drawing, ordered[_CSV], f"{name}-variants", f"{'. '.join(said)}. {caption}")


_CSV = [
    *("place", "overlap", "jobs", "rounds", "time_s", "time_s_low", "time_s_high"),
    *("over", "over_ratio", "over_gain", "ratio", "ratio_low", "ratio_high", "gain"),
    *("compute_s", "blocking_s", "exposed_s", "collectives_s", "hidden_s", "share_hidden", "bound_s", "bound_by"),
]


def _notes(row: "pd.Series[Any]", theirs: pd.DataFrame) -> tuple[str, ...]:
    """Beside a bar stand its time, what it saves over the one before and over none, and the published gains."""

    def stated(over: str) -> str:
        same = theirs[(theirs["gained"] == ",".join(flags(row["overlap"]) or ())) & (theirs["over"] == over)]
        return f"{100 * same['value'].iloc[0]:.4g} %" if len(same) and row["place"] == "ladder" else ""

    before = (",".join(flags(row["over"]) or ()) or NONE) if row["over"] else ""
    time_s, over, none = (
        write(row[key]) if row[key] == row[key] else ""
        for key, write in (("time_s", text.seconds), ("over_gain", text.gain), ("gain", text.gain))
    )
    return time_s, over, stated(before), none, stated(NONE) if before != NONE else ""


def _unsure(row: "pd.Series[Any]", place: int) -> bool:
    """Say whether the number in this column may be chance, or is not ours."""
    low, high = {1: ("over_gain_low", "over_gain_high"), 3: ("gain_low", "gain_high")}.get(place, ("", ""))
    return place in (2, 4) or (bool(low) and not (row[low] > 0 or row[high] < 0))


def _published(system: str) -> pd.DataFrame:
    """Return the gains that a paper has from this system, else those of par4d's running example."""
    gains = published.gains("overlap")
    here = gains[gains["system"].str.lower() == system.lower()]
    return here if len(here) else gains[gains["paper"] == "par4d"]


def _of_what(theirs: pd.DataFrame) -> str:
    one = theirs.iloc[0]
    return f"{one['source'].rpartition('-')[0]}, {one['model']} on {one['devices']} devices of {one['system']}"


def timeline(name: str, setting: Setting, every: Sides) -> list[Figure]:
    """Draw a step without overlap above one with the fullest variant that has a timeline; nothing where none has."""
    ladder = setting.variants[(setting.variants["place"] == "ladder") & (setting.variants["drawn"] >= 0)]
    panels = []
    tables = []
    for labelled, rows in (("without overlap", ladder["overlap"] == NONE), ("with", ladder["overlap"] != NONE)):
        for _, row in ladder[rows].tail(1).iterrows():
            overlap, drawn = row["overlap"], every.timeline(row["drawn"])
            assert drawn is not None
            panels.append(Panel(labelled if overlap == NONE else f"{labelled} {overlap}", drawn))
            table = list_spans(drawn)
            table.insert(0, "overlap", overlap)
            tables.append(table)
    title = "One step"
    drawing = draw_steps(panels)
    if drawing is None:
        return []
    caption = (
        "The last iteration of each in the newest job, on rank 0, which may differ from the median above: compute and "
        "its phases on top, below it what is in flight along each axis of the grid. A lane is filled in part where "
        "more happens than the picture can tell apart."
    )
    data = pd.concat(tables, ignore_index=True)
    return [Figure(title, caption, drawing, data, f"{name}-timeline", describe_steps(panels))]


_WHAT, _WHERE = "model grid", "ranks nodes system network"
_FIGURES = f"share_hidden step_by_bound bound_by {GREATEST}"
"""Columns that are read from a variant's own steps."""


def layouts(settings: Sequence[Setting], drawn: int) -> Table:
    """Make one row a setting: its fullest variant against none. drawn: how many have a section."""
    data = pd.DataFrame([_layout(setting) for setting in settings])
    columns = columns_of(
        first(data),
        _WHAT,
        ratio_column("Ratio to none", missing=NO_BASE),
        f"gain {_FIGURES} none_s time_s hides share rounds {_WHERE} axis axis_s shared crowded",
        time_s="With",
        hides="which is",
        axis="Most exposed axis",
    )
    note = (
        "Every layout that ran: the variant that has the most flags, fast or slow, against none. Ratios with their "
        "intervals, in grey where they may be chance." + _intervals(data)
    )
    if drawn < len(settings):
        note += f" The {drawn} with the most variants are drawn below."
    return Table("Overlap by layout", columns, data, "layouts", note, "only_failed")


def _intervals(data: pd.DataFrame) -> str:
    """Say to a note what holds of these rows' intervals, and of a gain that is greater than the greatest."""
    said = f" {NOTES['intervals']} Of the greatest gain, it is that of the ratio alone."
    if (data[GREATEST] > 1).any():
        said += " More than 100 %: the bound was measured too high, or the ratio happened to be low."
    return said


def _layout(setting: Setting) -> dict[Any, Any]:
    first, most = setting.first, setting.fullest()
    row = {key: first[key] for key in ("system", "model", "ranks", "grid", "network")} | {"nodes": setting.nodes}
    row |= {"share": _share(setting), "none_s": math.nan, "only_failed": setting.variants.empty}
    for _, none in setting.variants[setting.variants["overlap"] == NONE].iterrows():
        row["none_s"] = none["time_s"]
    if most is None:
        names = ("time_s", "rounds", *RATIOS, "gain", "gain_low", "gain_high", "share_hidden", "step_by_bound")
        missing = dict.fromkeys((*names, GREATEST, f"{GREATEST}_low", f"{GREATEST}_high", "axis_s"), math.nan)
        return row | missing | dict.fromkeys(("hides", "axis", *WORDS), "")
    axis, axis_s = most_exposed(most, setting.axes) or ("", math.nan)
    return row | most.to_dict() | {"hides": short(most["overlap"]), "axis": axis, "axis_s": axis_s}


def by_grid(settings: Sequence[Setting]) -> Table:
    """Make one row a setting: the paired ratio of each flag alone and of the fullest variant."""
    ran = [
        flag
        for flag in FLAGS
        if any((flag,) in setting.variants["overlap"].map(flags).tolist() for setting in settings)
    ]
    data = pd.DataFrame([_ratios(setting, ran) for setting in settings])
    columns = columns_of(
        first(data),
        _WHAT,
        ratio_column("All that ran", missing="not run"),
        *(ratio_column(f"{flag} alone", f"{flag}_ratio", missing="not run") for flag in ran),
        f"hides rounds {_WHERE}",
        missing={"hides": "none"},
        hides="All are",
    )
    note = (
        "Paired ratios of the time by that without overlap, with their intervals: less than 1 is faster, grey may be "
        f"chance. A flag for which a grid has no communication was not run. {NOTES['intervals']}"
    )
    return Table("By grid", columns, data, "by-grid", note)


def _ratios(setting: Setting, ran: Sequence[str]) -> dict[Any, Any]:
    alone = setting.variants[setting.variants["place"] == "alone"]
    found = {flags(row["overlap"]): row for _, row in alone.iterrows()}
    ratios = {f"{flag}_{name}": found[flag,][name] if (flag,) in found else math.nan for flag in ran for name in RATIOS}
    return _layout(setting) | ratios


def variants(name: str, setting: Setting) -> Table:
    """List every variant with its ratios, times, what waits along each axis, and the memory it takes."""
    data = setting.variants.drop_duplicates("overlap")
    data = data.assign(hides=data["overlap"].map(short), share=_share(setting), spread=ranges(data, NOT_MEASURED))
    columns = columns_of(
        "hides share rounds time_s spread",
        ratio_column("Ratio to the one before", "over_ratio", missing=""),
        ratio_column("Ratio to none", missing=""),
        f"gain {_FIGURES} bound_s compute_s processors_s hidden_s blocking_s exposed_s",
        *(
            Column(f"{title}, {axis}", f"{key}_{axis}", text.seconds, missing="none")
            for key, title in (("exposed", "Exposed"), ("hidden", "Behind compute"))
            for axis in setting.axes
        ),
        "prefetch_bytes cache_bytes cached_blocks",
        missing={"gain": "", "exposed_s": NOT_RECORDED},
        time_s="Step",
        spread="Rounds from, to, s",
        gain="Saved over none",
        exposed_s="Other exposed",
    )
    note = (
        "Medians over jobs; times are of one iteration on rank 0. Memory gathered ahead and cached is part of its peak."
        + _intervals(data)
    )
    if (data["step_by_bound"] < 1).any():
        note += " A step shorter than its bound: the bound was measured too high, as by another load on the machine."
    return Table("Variants", columns, data, f"{name}-details", note)


def _share(setting: Setting) -> str:
    done, all_of_them = setting.jobs
    return f"{done} of {all_of_them}" if done < all_of_them else str(done)
