"""Baselines: time per batch of the engine and of other people's trainers, each laid out its own way."""

from typing import Any

import pandas as pd

from engine.peers.registry import ALONE, COMPARISONS
from engine.result import metrics
from engine.result.judges.peers import FEWEST_JOBS
from reports import text
from reports.columns import NOT_PRINTED, columns_of
from reports.derived import by_row
from reports.figures import trainers
from reports.figures.contests import details, equal
from reports.figures.step_parts import step_parts
from reports.frames.contests import SERIES, over_one_network, points
from reports.frames.frame import Frames
from reports.frames.jobs import grouped
from reports.page import Column, Figure, Figures, Page, PageSection, Paragraph, Table
from reports.pages.series import published_gains
from reports.pages.study import Study, contests_where
from reports.plots.rows import Bars, Row, stacked
from reports.read import published
from reports.words import NOTES, STUDIES

TRAINED = [*SERIES, "sequences", "sequence", "checkpointing", "threads", "ranks"]
PAPERS = ("Megatron-LM", "DeepSpeed", "DeepSpeed-3D", "ZeRO-3")
"""The papers compare themselves with these."""


def build(mine: Frames, everything: Frames) -> Page:
    table = mine.contests
    if table.empty:
        return Page(empty=True)
    contests = points(table)
    parts = [(name, title, _best(of)) for name, title, of in grouped(over_one_network(contests), TRAINED, _title)]
    best = [rows for _, _, rows in parts]
    first = PageSection("Who is faster", [Paragraph(_standing(rows)) for rows in best])
    last = details(table, STUDIES["baselines"].how, contests)
    validated = everything.predictions.validation
    published_rates = trainers.rates(contests, validated.result if validated else None)
    return Page([first, *(_section(*one) for one in parts), _published(published_rates), last], _headline(best))


STUDY = Study("baselines", 6, contests_where(lambda ran: ran["study"] == "baselines"), build, "contests")


def _best(rows: pd.DataFrame) -> pd.DataFrame:
    """Choose the layout on which each peer stood best, the toughest peer first: those to which the engine lost for
    certain come before others, peers without any contest last. saved, and from saved_low to saved_high; open: whether
    any layout of the peer is undecided.
    """
    undecided = set(rows.loc[rows["verdict"] == "undecided", "peer"])
    lost = rows.assign(lost=rows["verdict"] == "lost")
    ordered = lost.sort_values(["lost", "ratio"], ascending=False, na_position="last", kind="stable")
    best = ordered.drop_duplicates("peer")
    best = best.assign(open=best["peer"].isin(undecided))
    ends = {"saved": "ratio", "saved_low": "high", "saved_high": "low"}
    return best.assign(**{name: by_row(metrics.saved, 1.0, best[ratio]) for name, ratio in ends.items()})


def _title(row: "pd.Series[Any]") -> str:
    devices = text.plural(int(row["ranks"]), "rank")
    return text.title(row["system"], row["partition"], row["model"], row["dtype"], devices)


def _who(row: "pd.Series[Any]") -> str:
    return f"{row['peer_is']} ({row['layout'] or row['grid']})"


def _standing(rows: pd.DataFrame) -> str:
    """Say who beats the engine, in words; where nobody does, by how much it leads."""
    ran, where = rows[rows["jobs"] > 0], _title(rows.iloc[0])
    if ran.empty:
        return f"{where}: no contest ended well."
    lost = ran[ran["verdict"] == "lost"]
    if len(lost):
        said = "; ".join(
            f"{_who(row)} takes {text.percent(1 / row['ratio'])} of the engine's time" for _, row in lost.iterrows()
        )
        return f"{where}: the engine is not the fastest. {said}."
    best = ran.iloc[0]
    span = text.span(best["low"], best["high"])
    span = f"interval {span}" if span == "not known" else span
    undecided = ran[ran["open"]]
    if len(undecided):
        ahead = "" if best["ratio"] <= 1 else f" {_who(best)} was ahead of it, though."
        few = " One job decides nothing: --repeat 3 or more do." if (undecided["jobs"] < FEWEST_JOBS).all() else ""
        return (
            f"{where}: nobody is faster than the engine for certain, and {text.plural(len(undecided), 'peer')} may be."
            f"{ahead} Against {_who(best)}, the best of them, it takes {text.ratio(best['ratio'])} times as long "
            f"({span}).{few}"
        )
    return (
        f"{where}: the engine is faster than {text.plural(len(ran), 'peer')}. Of the best of them, {_who(best)}, it "
        f"takes {text.ratio(best['ratio'])} of the time ({span})."
    )


def _headline(groups: list[pd.DataFrame]) -> str:
    ran = [rows[rows["jobs"] > 0] for rows in groups if (rows["jobs"] > 0).any()]
    won = sum(bool(((rows["verdict"] == "won") & ~rows["open"]).all()) for rows in ran)
    lost = sum(bool((rows["verdict"] == "lost").any()) for rows in ran)
    undecided = len(ran) - won - lost
    said = f"fastest of all in {won:,} of {text.plural(len(ran), 'training')}, not in {lost:,}"
    return f"{said}, {undecided:,} undecided"


def _section(name: str, title: str, rows: pd.DataFrame) -> PageSection:
    if not (rows["jobs"] > 0).any():
        return PageSection(
            title, (Paragraph("Not measured: no contest of this job ended well."),), f"job-{name}", one_of_many=True
        )
    others = sorted(set(COMPARISONS) - set(ALONE) - set(rows["peer"]))
    absent = (Paragraph(f"{NOTES['absent']} {', '.join(others)}."),) if others else ()
    blocks = (
        Figures((_bars(name, rows),), wide=True),
        *step_parts(name, rows),
        _against(name, rows),
        *_par4ds(rows),
        *absent,
        equal(name, rows),
    )
    return PageSection(title, blocks, f"job-{name}", one_of_many=True)


def _par4ds(rows: pd.DataFrame) -> list[Paragraph]:
    """Say what par4d prints of U-Nets on the same system, of which it has no times."""
    theirs = published.gains("weak_scaling")
    theirs = theirs[theirs["model"].str.startswith("U-Net") & (theirs["over"] == "ZeRO-3")]
    theirs = theirs[(theirs["system"].str.lower() == rows.iloc[0]["system"]) & bool(rows["of_images"].any())]
    return [
        Paragraph(
            f"Published ({row['source']}): {row['gained']} saves {100 * row['value']:g} % of the time per batch over "
            f"{row['over']} for {row['model']} on {row['devices']} devices of {row['system']} ({row['note']})."
        )
        for _, row in theirs.iterrows()
    ]


def _bars(name: str, rows: pd.DataFrame) -> Figure:
    ran = rows[rows["jobs"] > 0]
    ours_s = float(ran["ours_s"].median())
    times = [ours_s, *ran["peer_s"]]
    colours = [Bars("the engine", [ours_s] + [0.0] * len(ran), "blue"), Bars("a peer", [0.0, *ran["peer_s"]], "muted")]
    drawn = [Row("the engine", notes=(str(ran.iloc[0]["grid"]), text.seconds(ours_s), ""))]
    drawn += [
        Row(row["peer"], notes=(row["layout"] or row["grid"], text.seconds(row["peer_s"]), text.ratio(row["ratio"])))
        for _, row in ran.iterrows()
    ]
    said = "; ".join(f"{bar.label} {text.seconds(time_s)}" for bar, time_s in zip(drawn, times, strict=True))
    title = "Time per batch"
    caption = (
        "Medians over all steps; the engine's over all contests. Which side is faster the ratio says, of steps that "
        "took turns, and not by bars, which were measured one after the other."
    )
    drawing = stacked(colours, drawn, "seconds per batch", columns=("layout", "batch", "engine's\nby its"), width=900)
    keys = ["peer", "layout", "grid", "ours_s", "peer_s", "ratio", "low", "high"]
    return Figure(title, caption, drawing, ran[keys], f"{name}-times", f"{said}. {caption}")


def _against(name: str, rows: pd.DataFrame) -> Table:
    columns = columns_of(
        "peer peer_is layout grid grid_is network verdict ratio saved ours_s peer_s ours_hfu peer_hfu "
        "ours_of_empirical peer_of_empirical ours_bytes peer_bytes reason",
        missing={"layout": "the engine's grid", "reason": ""},
        grid="Our grid",
        ratio="Our batch by its",
        ours_s="Our batch",
        peer_s="Its batch",
        peer_bytes="its",
        reason="Why not",
    )
    return Table("Against each peer", columns, rows, f"{name}-peers")


def _published(rates: Table) -> PageSection:
    gains = published.gains()
    over_others = published_gains(gains[gains["over"].isin(PAPERS)])
    return PageSection("Published", (over_others, _published_utilisation(published.weak_scaling()), rates))


def _published_utilisation(rows: pd.DataFrame) -> Table:
    """List the points at which a paper has several frameworks."""
    point = ["paper", "system", "model", "ranks"]
    table = rows.pivot(index=point, columns="framework", values="hfu").dropna(thresh=2).dropna(axis=1, how="all")
    table = table.reset_index().sort_values(["paper", "system", "ranks"])
    columns = columns_of(
        "paper system model ranks",
        *(Column(name, name, text.percent, missing=NOT_PRINTED) for name in table.columns[len(point) :]),
    )
    note = "Hardware flop/s utilisation of the advertised peak, as printed; not measured here."
    return Table("Published HFU", columns, table, "published-hfu", note)
