"""The pictures of one layout in the overlap study: its variants as bars (par4d Fig. 3), and a step (par4d Fig. 4)."""

from typing import Any

import pandas as pd

from reports import published, text
from reports.ablation import Setting
from reports.methods import INTERVALS
from reports.overlaps import NONE, flags
from reports.page import Figure
from reports.plots.canvas import WIDE
from reports.plots.rows import Bars, Row, stacked
from reports.plots.timeline import Panel, describe, picture, spans
from reports.variants import Variants

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
            row["label"], row["time_s_low"], row["time_s_high"], row["bound_s"],
            HEADINGS[row["place"]] if begins else "", tuple(note[place] for place in kept),
            tuple(at for at, place in enumerate(kept) if _unsure(row, place)),
        )
        for begins, note, (_, row) in zip(~ordered.duplicated("place"), notes, ordered.iterrows(), strict=True)
    ]  # fmt: skip
    title = "A step by overlap"
    caption = (
        "Medians over jobs of the mean step, on rank 0; whiskers span the rounds. Blocking and other waits are both "
        "exposed. A gain is 1 less the paired ratio of its row in the table below; in grey it may be chance. "
        + INTERVALS
    )
    if {2, 4} & set(kept):
        caption += f" Grey too: the published gains, {_of_what(theirs)}."
    said = [f"{row['label']}: {text.seconds(row['time_s'])}" for _, row in ordered.iterrows()]
    drawing = stacked(
        parts, drawn, "seconds per iteration on rank 0", columns=[heads[place] for place in kept],
        mark="bound of the step", width=WIDE,
    )  # fmt: skip
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


def timeline(name: str, setting: Setting, variants: Variants) -> list[Figure]:
    """Draw a step without overlap above one with the fullest variant that has a timeline; nothing where none has."""
    ladder = setting.variants[(setting.variants["place"] == "ladder") & (setting.variants["drawn"] >= 0)]
    panels = []
    tables = []
    for labelled, rows in (("without overlap", ladder["overlap"] == NONE), ("with", ladder["overlap"] != NONE)):
        for _, row in ladder[rows].tail(1).iterrows():
            overlap, drawn = row["overlap"], variants.timelines[row["drawn"]]
            panels.append(Panel(labelled if overlap == NONE else f"{labelled} {overlap}", drawn))
            table = spans(drawn)
            table.insert(0, "overlap", overlap)
            tables.append(table)
    title = "One step"
    drawing = picture(panels)
    if drawing is None:
        return []
    caption = (
        "The last iteration of each in the newest job, on rank 0, which may differ from the median above: compute and "
        "its phases on top, below it what is in flight along each axis of the grid. A lane is filled in part where "
        "more happens than the picture can tell apart."
    )
    data = pd.concat(tables, ignore_index=True)
    return [Figure(title, caption, drawing, data, f"{name}-timeline", describe(panels))]
