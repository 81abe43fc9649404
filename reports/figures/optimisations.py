"""Picture and tables of optimisations, each added to those before it: a step in its parts (axonn-sc24 Fig. 7)."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from reports import text
from reports.columns import columns_of, first
from reports.frames.optimisations import Setting, published_gains
from reports.frames.sides import ranges, ratio_column
from reports.page import NOT_MEASURED, Column, Figure, Table
from reports.plots.canvas import WIDE
from reports.plots.rows import Bars, Row, stacked
from reports.words import NOTES

LABELS = {"grid": "+ grid", "tuning": "+ tuning", "overlap": "+ overlap"}
"""Labels of bars; others are called as their sides."""
HEADS = ("step", "saved over the\none before", "axonn-sc24")
_SAVED, _PUBLISHED = 1, 2


def steps(name: str, setting: Setting) -> Figure:
    """Draw compute and exposed communication of each side, with what it saves and what was published."""
    sides = setting.sides
    parts = [
        Bars("compute", sides["compute_s"].tolist(), "blue"),
        Bars("exposed communication", sides["collectives_s"].tolist(), "red"),
    ]
    drawn = [
        Row(
            LABELS.get(row["side"], row["side"]),
            row["time_s_low"],
            row["time_s_high"],
            notes=_notes(row),
            pale=(*(() if row["verdict"] in ("faster", "slower") else (_SAVED,)), _PUBLISHED),
        )
        for _, row in sides.iterrows()
    ]
    of = published_gains().iloc[-1]
    caption = (
        "Medians over jobs of the mean step, parted on rank 0; whiskers span the rounds. A gain is 1 less the paired "
        f"ratio to the bar above; in grey it may be chance. Published: {of['source']}, {of['model']} on "
        f"{of['devices']} devices of {of['system']} for overlap. {NOTES['intervals']}"
    )
    said = ". ".join(
        f"{row['side']}: {text.seconds(row['time_s'])}, {text.seconds(row['collectives_s'])} of it exposed"
        for _, row in sides.iterrows()
    )
    drawing = stacked(parts, drawn, "seconds per iteration on rank 0", columns=HEADS, width=WIDE)
    return Figure("A step by optimisation", caption, drawing, sides[_CSV], f"{name}-steps", f"{said}. {caption}")


_CSV = [
    *("side", "former", "grid", "micro_batch", "tuned", "overlap", "jobs", "rounds"),
    *("time_s", "time_s_low", "time_s_high", "compute_s", "collectives_s"),
    *("over_ratio", "over_ratio_low", "over_ratio_high", "saved", "saved_low", "saved_high", "verdict", "published"),
    *("ratio", "ratio_low", "ratio_high", "total", "total_low", "total_high"),
]


def _notes(row: "pd.Series[Any]") -> tuple[str, ...]:
    saved = text.gain(row["saved"]) if row["saved"] == row["saved"] else ""
    return text.seconds(row["time_s"]), saved, row["published"]


def sides_table(name: str, setting: Setting) -> Table:
    """List every side with its settings, its parts, its ratios and its published gain."""
    data = setting.sides.assign(spread=ranges(setting.sides, NOT_MEASURED))
    columns = columns_of(
        "side grid micro_batch tuned overlap time_s spread compute_s collectives_s saved published verdict",
        ratio_column("Ratio to the one before", "over_ratio", missing=""),
        ratio_column("Ratio to the baseline", missing=""),
        "jobs rounds",
        missing={"saved": "", "published": "", "verdict": ""},
        time_s="Step",
        spread="Rounds from, to, s",
        saved="Saved over the one before",
        verdict="which is",
    )
    note = f"Medians over jobs; parts are of one iteration on rank 0. {NOTES['intervals']}"
    return Table("Sides", columns, data, f"{name}-sides", note)


def overview(settings: Sequence[Setting]) -> Table:
    """Make one row a setting: what each step saves over the one before, and all of them over the baseline."""
    data = pd.DataFrame([_overview_row(setting) for setting in settings])
    saved = [
        Column(f"Saved by {side}", side, text.gain, missing="", figure="saved", spread=_ends(side), level=0.0)
        for side in LABELS
    ]
    total = Column("By all", "total", text.gain, figure="saved", spread=_ends("total"), level=0.0)
    columns = columns_of(first(data), "model ranks", *saved, total, "time_s jobs rounds", time_s="Baseline's step")
    return Table("Saved by setting", columns, data, "settings", f"In grey what may be chance. {NOTES['intervals']}")


def _ends(key: str) -> tuple[str, str]:
    return f"{key}_low", f"{key}_high"


def _overview_row(setting: Setting) -> dict[str, Any]:
    sides, last = setting.sides, setting.sides.iloc[-1]
    row = {key: setting.first[key] for key in ("system", "model", "ranks")}
    row |= {"time_s": sides.iloc[0]["time_s"], "jobs": last["jobs"], "rounds": last["rounds"]}
    by_side = sides.set_index("side")
    for side in LABELS:
        known = side in by_side.index
        row |= {f"{side}{end}": by_side.loc[side, f"saved{end}"] if known else float("nan") for end in _OF_AN_INTERVAL}
    return row | {f"total{end}": last[f"total{end}"] for end in _OF_AN_INTERVAL}


_OF_AN_INTERVAL = ("", "_low", "_high")
