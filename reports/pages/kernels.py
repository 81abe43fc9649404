"""Kernel modes: the products of a rank in every mode, what the tuner chose, and what a step gains (axonn-sc24 V-C)."""

from typing import Any

import pandas as pd

from engine.result import UNTUNED, metrics
from reports import text
from reports.columns import columns_of, failures, provenance
from reports.derived import by_row
from reports.figures.contests import COLOURS
from reports.figures.kernels import heat_map, step_dots
from reports.frames.contests import points
from reports.frames.frame import SERIES, Frames, series_title
from reports.frames.jobs import grouped
from reports.page import (
    MOST_SECTIONS,
    Block,
    Column,
    Facts,
    Figures,
    KeyFact,
    Page,
    PageSection,
    Paragraph,
    Table,
    nothing_measured,
)
from reports.pages.study import Study
from reports.read import published
from reports.words import NOTES, STUDIES

TARGET = 0.95
SETTING = [*SERIES, "model", "grid", "micro_batch", "checkpointing", "ranks", "device_kind", "threads"]


def build(mine: Frames, everything: Frames) -> Page:
    groups = grouped(mine.runs, SETTING, _title)
    shapes = with_figures(mine)
    sections = [_section(*one, mine, shapes) for one in groups[:MOST_SECTIONS]]
    tuned = steps(everything.contests[everything.contests["peer"] == UNTUNED])
    if len(tuned):
        sections.append(_steps(tuned))
    if groups:
        details: list[Block] = [Paragraph(STUDIES["kernels"].how)]
        details += [_shapes("all", shapes, of_several=True)] if len(groups) > MOST_SECTIONS else []
        sections.append(PageSection("Details", [*details, *failures(mine.runs, "all"), provenance(mine.runs)]))
    elif tuned.empty:
        sections.append(nothing_measured(*STUDIES["kernels"].run))
    return Page([*sections, _published()], _headline(shapes), empty=not groups and tuned.empty)


STUDY = Study("kernels", 9, lambda runs: runs["kind"] == "matmul", build)


def with_figures(mine: Frames) -> pd.DataFrame:
    """Add model, grid and the speed-up of their layers to the shapes of the newest good job of each setting."""
    good = mine.runs[mine.runs["status"] == "ok"].sort_values("end", kind="stable")
    newest = good.drop_duplicates(SETTING, keep="last")
    shapes = mine.tunings.of(newest).shapes
    known = newest[["system", "model", "grid", "micro_batch"]]
    shapes = shapes.join(known, on="run")
    return shapes.assign(
        size=[f"{m} x {k} by {k} x {n}" for m, n, k in zip(shapes["m"], shapes["n"], shapes["k"], strict=True)],
        speed_up=by_row(metrics.speed_up, shapes["own_s"], shapes["chosen_s"]),
    )


def _title(run: "pd.Series[Any]") -> str:
    return text.clean(f"{series_title(run)}, {run['model'] or 'unnamed model'} on {run['grid']}", 160)


def _headline(shapes: pd.DataFrame) -> str:
    timed = shapes.dropna(subset="chosen_s")
    if timed.empty:
        return "nothing measured"
    changes = f"{int(timed['changed'].sum()):,} of {text.plural(len(timed), 'shape')} changed by the tuner"
    best = timed["speed_up"].max()
    return f"{changes}, at most {best:.2f} times as fast" if timed["changed"].any() else changes


def _section(name: str, title: str, rows: pd.DataFrame, mine: Frames, every: pd.DataFrame) -> PageSection:
    shapes = every[every["run"].isin(rows.index)]
    blocks: list[Block] = []
    if shapes["own_s"].notna().any():
        run = rows.loc[shapes["run"].iloc[0]]
        ways = mine.tunings.ways[mine.tunings.ways["shape"].isin(shapes.index)]
        blocks = [_facts(run, shapes, ways), Figures((heat_map(name, run, shapes, ways),), wide=True)]
    else:
        blocks = [Paragraph("Not measured: no job of this setting ended well.")]
    if len(shapes):
        blocks.append(_shapes(name, shapes))
    return PageSection(title, tuple(blocks), f"products-{name}", one_of_many=True)


def _facts(run: "pd.Series[Any]", shapes: pd.DataFrame, ways: pd.DataFrame) -> Facts:
    timed = shapes.dropna(subset=["own_s", "chosen_s"])
    again = timed[timed["holds"] != ""]
    kept = (again["holds"] == "yes").mean() if len(again) else None
    own_s, chosen_s = ((timed["layers"] * timed[key]).sum() for key in ("own_s", "chosen_s"))
    rates = ways.loc[ways["chosen"], "flops_per_s"]
    peak, of = (run["empirical"], "empirical") if run["empirical"] > 0 else (run["advertised"], "advertised")
    low, high = (metrics.utilisation(rate, 1, peak) for rate in (rates.min(), rates.max()))
    changed = f"{int(timed['changed'].sum()):,} of {len(timed):,}"
    faster = f"{metrics.speed_up(own_s, chosen_s):.3f}x"
    holds: KeyFact = (None, "of the choices hold", "of shapes timed twice")
    if kept is not None:
        holds = (text.percent(kept), holds[1], f"in a second timing; {text.percent(TARGET)} wanted")
    share: KeyFact = (None, f"of the {of} peak", "no peak is known of this device")
    if peak > 0 and low == low:
        share = (f"{text.percent(low)} to {text.percent(high)}", share[1], "slowest and fastest product as chosen")
    times = f"{text.seconds(own_s)} to {text.seconds(chosen_s)} a micro-batch"
    first = (changed, "shapes changed by the tuner", f"on {run['devices'] or 'unnamed devices'}")
    return Facts([first, (faster, "as fast, all layers' products", times), holds, share])


def _shapes(name: str, shapes: pd.DataFrame, *, of_several: bool = False) -> Table:
    """Rows of several settings name theirs."""
    setting = columns_of("system model grid")
    columns = columns_of(
        *(setting if of_several else ()),
        "layer layers",
        Column("I by W", "size", numeric=False),
        "forwards choice own_s chosen_s best_s speed_up holds",
    )
    note = (
        "Seconds of one layer's products in a micro-batch: O as often as it is computed, dI and dW once. Holds: within "
        "3 % of the fastest ways in a second timing; undecided where its rounds don't tell, or weren't kept."
    )
    return Table("Shapes", columns, shapes, f"{name}-shapes", note)


def steps(ran: pd.DataFrame) -> pd.DataFrame:
    """Make one row a contest: that of contests.points, speed_up, meaning in words, and the colour of its dot.

    ran: the contests with the peer "untuned".
    """
    table = points(ran)
    meaning = [_meaning(row) for _, row in table.iterrows()]
    colour = table["verdict"].map(COLOURS).where(table["changed"] != 0).fillna("muted")
    speed_up = by_row(metrics.speed_up, 1.0, table["ratio"].astype(float)) if len(table) else 1.0
    return table.assign(meaning=meaning, colour=colour, speed_up=speed_up)


def _meaning(row: "pd.Series[Any]") -> str:
    if not row["jobs"]:
        return "failed"
    if row["changed"] == 0:
        return "nothing changed: 1.0 by definition"
    return {"won": "faster", "lost": "slower"}.get(row["verdict"], "undecided")


def _steps(tuned: pd.DataFrame) -> PageSection:
    words = (
        "A step of the network's first blocks (l2: two) with the tuner and without, in turns in the same processes, on "
        "the devices of one x and y plane: those of z and data compute the same products on other sequences. Where the "
        "tuner changed nothing, a step takes 1.0 times as long by definition, and what was measured is noise. "
        + NOTES["intervals"]
    )
    note = "A ratio below 1 is the tuner's gain; grey may be chance."
    columns = columns_of(
        "system model dtype grid changed ratio speed_up meaning ours_s peer_s jobs rounds reason",
        missing={"reason": ""},
        ratio="Tuned by untuned",
        speed_up="As fast",
        ours_s="Tuned step",
        peer_s="Untuned step",
        reason="Failed because",
    )
    table = Table("Steps", columns, tuned.assign(failed=tuned["jobs"] == 0), "steps", note, failed="failed")
    figures = (Figures((step_dots(tuned),), wide=True),) if (tuned["jobs"] > 0).any() else ()
    return PageSection("What a step gains", (Paragraph(words), *figures, table), "steps")


def _published() -> PageSection:
    columns = columns_of(
        "system framework model devices what",
        Column("Value", "value", numeric=False),
        "source note",
        missing={"devices": "not printed"},
        devices="Devices",
        source="Source",
    )
    note = "Published figures, not measured here."
    table = Table("Published figures of tuned products", columns, published.kernels(), "published", note)
    return PageSection("Published figures", (table,))
