"""The pictures of one layout in the overlap study: its variants as bars (par4d Fig. 3), and a step (par4d Fig. 4)."""

from typing import Any

import pandas as pd

from reports import bars, published, text, timeline_picture
from reports.ablation import NONE, flags, within_spread
from reports.bars import Bar, Bars
from reports.frame import Frames
from reports.page import Figure
from reports.timeline_picture import Panel

HEADINGS = {"ladder": "one after the other", "alone": "each alone", "other": "other combinations"}


def steps(name: str, ordered: pd.DataFrame) -> Figure:
    """Compute and exposed communication of every variant, with its gains (par4d Fig. 3, axonn-sc24 Fig. 5)."""
    theirs = _published(ordered.iloc[0])
    told = ordered["blocking_s"].notna()
    parts = [
        Bars("compute", ordered["compute_s"].tolist(), "blue"),
        Bars("exposed, can't be hidden", ordered["blocking_s"].tolist(), "gold"),
        Bars("exposed, could be hidden", ordered["exposed_s"].tolist(), "red"),
    ]
    if (~told & ordered["collectives_s"].notna()).any():
        parts.append(Bars("exposed, not told apart", ordered["collectives_s"].where(~told).tolist(), "purple"))
    notes = [_notes(row, theirs) for _, row in ordered.iterrows()]
    paper = theirs["paper"].iloc[0]
    heads = ("step", "saved over the\none before", paper, "saved\nover none", paper)
    kept = [place for place in range(len(heads)) if any(row[place] for row in notes)]
    drawn = [
        Bar(
            row["label"], HEADINGS[row["place"]] if begins else "", row["time_s_low"], row["time_s_high"],
            tuple(note[place] for place in kept),
            tuple(at for at, place in enumerate(kept) if _unsure(row, place)),
            "failed" if row["failed"] else "not measured",
        )
        for begins, note, (_, row) in zip(~ordered.duplicated("place"), notes, ordered.iterrows(), strict=True)
    ]  # fmt: skip
    title = "A step by overlap"
    caption = (
        "Medians over jobs, on rank 0; whiskers span the jobs' times. A gain in grey may be chance: the whiskers of "
        "both meet."
    )
    if {2, 4} & set(kept):
        caption += f" Grey too: the published gains, {_of_what(theirs)}."
    said = [f"{row['label']}: {text.seconds(row['time_s'])}" for _, row in ordered.iterrows() if row["jobs"]]
    columns = [*_VARIANT, "over", "gain_over", "gain_none", "hidden", "hidden_s", "hideable_s"]
    columns += ["compute_s", "blocking_s", "exposed_s"]
    return Figure(
        title, caption,
        bars.stacked(parts, drawn, "seconds per iteration on rank 0", name=f"{name}-variants", title=title,
            description=". ".join(said) + ". " + caption, columns=[heads[place] for place in kept],
            width=timeline_picture.WIDTH),
        ordered[columns], f"{name}-variants",
    )  # fmt: skip


_VARIANT = ["place", "overlap", "tuning", "jobs", "time_s", "time_s_low", "time_s_high"]


def _notes(row: "pd.Series[Any]", theirs: pd.DataFrame) -> tuple[str, ...]:
    """What stands beside a bar: its time, what it saves over the one before and over none, and the published gains."""

    def stated(over: str) -> str:
        same = theirs[(theirs["gained"] == ",".join(flags(row["overlap"]) or ())) & (theirs["over"] == over)]
        return f"{100 * same['value'].iloc[0]:.4g} %" if len(same) and row["place"] == "ladder" else ""

    if not row["jobs"]:
        return ("",) * 5
    before = (",".join(flags(row["over"]) or ()) or NONE) if row["over"] else ""
    over = text.gain(row["gain_over"]) if row["gain_over"] == row["gain_over"] else ""
    none = text.gain(row["gain_none"]) if row["gain_none"] == row["gain_none"] else ""
    return text.seconds(row["time_s"]), over, stated(before), none, stated(NONE) if before != NONE else ""


def _unsure(row: "pd.Series[Any]", place: int) -> bool:
    """Whether the number in this column is no larger than the jobs' scatter, or is not ours."""
    return (place == 1 and within_spread(row, "over")) or (place == 3 and within_spread(row, "none")) or place in (2, 4)


def _published(first: "pd.Series[Any]") -> pd.DataFrame:
    """The gains that a paper has from this system, else those of par4d's running example."""
    gains = published.gains()
    gains = gains[gains["study"] == "overlap"]
    here = gains[gains["system"].str.lower() == first["system"].lower()]
    return here if len(here) else gains[gains["paper"] == "par4d"]


def _of_what(theirs: pd.DataFrame) -> str:
    one = theirs.iloc[0]
    return f"{one['source'].rpartition('-')[0]}, {one['model']} on {one['devices']} devices of {one['system']}"


def timeline(name: str, ordered: pd.DataFrame, runs: pd.DataFrame, frames: Frames) -> list[Figure]:
    """A step without overlap above one with the fullest variant that has a timeline; nothing where none has."""
    panels = []
    tables = []
    for labelled, rows in (("without overlap", ordered["overlap"] == NONE), ("with", ordered["overlap"] != NONE)):
        ladder = ordered[rows & (ordered["place"] == "ladder")].iloc[::-1]
        kept = [
            (point["overlap"], run) for _, point in ladder.iterrows() for run in _with_timeline(point, runs, frames)
        ]
        if kept:
            overlap, run = kept[0]
            label = labelled if overlap == NONE else f"{labelled} {overlap}"
            panels.append(Panel(label, frames.timelines[run]))
            spans = [span.model_dump() | {"overlap": overlap} for span in frames.timelines[run].spans]
            tables.append(pd.DataFrame(spans, columns=["overlap", "lane", "kind", "name", "start_s", "end_s"]))
    title = "One step"
    svg = timeline_picture.picture(panels, name=f"{name}-timeline", title=title)
    if svg is None:
        return []
    caption = (
        "One iteration on rank 0: compute and its phases on top, below it what is in flight along each axis of the "
        "grid. A lane is filled in part where more happens than the picture can tell apart."
    )
    data = pd.concat(tables, ignore_index=True)
    for column in ("lane", "name"):
        data[column] = data[column].map(text.clean)
    return [Figure(title, caption, svg, data, f"{name}-timeline")]


def _with_timeline(point: "pd.Series[Any]", runs: pd.DataFrame, frames: Frames) -> list[int]:
    """The jobs of a point that have a timeline, newest first."""
    mine = runs[(runs["overlap"] == point["overlap"]) & (runs["tuning"] == point["tuning"]) & (runs["status"] == "ok")]
    return [run for run in mine.sort_values("end", ascending=False).index if run in frames.timelines]
