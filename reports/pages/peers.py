"""Peers: the engine's step time by that of other people's parallelism, in turns in the same processes."""

from typing import Any

import pandas as pd

from reports import text
from reports.figures.contests import contests_table, details, ratios
from reports.frames.contests import SERIES, most_run, over_one_network, points
from reports.frames.frame import Frames
from reports.page import MOST_SECTIONS, Block, Facts, Figure, Figures, KeyFact, Page, PageSection, Paragraph
from reports.pages.study import Study, contests_where
from reports.words import NOTES, STUDIES


def build(mine: Frames, everything: Frames) -> Page:
    table = mine.contests
    if table.empty:
        return Page(empty=True)
    contests = points(table).sort_values([*SERIES, "ratio", "peer"], kind="stable")
    drawn = most_run(contests, SERIES, MOST_SECTIONS)
    sections = [_section(*one) for one in text.titled(drawn, lambda rows: _title(rows.iloc[0]))]
    all_drawn = sum(map(len, drawn)) == len(contests)
    last = details(table, STUDIES["peers"].how, None if all_drawn else contests)
    return Page([*sections, last], _headline(contests))


OWN = contests_where(lambda ran: (ran["ranks"] > 1) & ~ran["study"].isin(["baselines", "validation"]))
STUDY = Study("peers", 8, OWN, build, "contests")


def _title(row: "pd.Series[Any]") -> str:
    series = "" if row["series"] in ("", row["system"]) else f"{row['series']} series"
    torch = row["torch"] and f"torch {row['torch']}"
    return text.title(*row[["system", "partition"]], series, *row[["model", "dtype", "devices"]], torch)


def _headline(contests: pd.DataFrame) -> str:
    ran = contests[contests["jobs"] > 0]
    if ran.empty:
        return "no contest ended well"
    ran = over_one_network(ran)
    if ran.empty:
        return "no contest had one network for both sides"
    won, lost, undecided = _count(ran)
    return f"{won:,} of {text.plural(len(ran), 'contest')} won, {lost:,} lost, {undecided:,} undecided"


def _count(ran: pd.DataFrame) -> tuple[int, int, int]:
    """Return contests won, lost, and those of which the interval leaves it open."""
    won, lost, undecided = (int((ran["verdict"] == verdict).sum()) for verdict in ("won", "lost", "undecided"))
    return won, lost, undecided


def _section(name: str, title: str, rows: pd.DataFrame) -> PageSection:
    ran = rows[rows["jobs"] > 0]
    blocks: list[Block] = [Paragraph("Not measured: no contest of this series ended well.")]
    if len(ran):
        blocks = [_facts(rows, ran), Figures([_figure(name, rows)], wide=True)]
    return PageSection(title, [*blocks, contests_table(name, rows)], f"series-{name}", one_of_many=True)


def _facts(rows: pd.DataFrame, ran: pd.DataFrame) -> Facts:
    first, apart = rows.iloc[0], ran["losses"].max()
    ran = over_one_network(ran)
    won, lost, undecided = _count(ran)
    met, missed, unknown = (int((ran["standing"] == one).sum()) for one in ("met", "missed", "undecided"))
    targets = (f"{met:,} of {met + missed + unknown:,}", "targets met", f"{missed:,} missed, {unknown:,} undecided")
    apart_words, allowed = None if pd.isna(apart) else f"{apart:.1e}", f"{rows['tolerance'].max():.1e}"
    facts: list[KeyFact] = [
        (f"{won:,} of {len(ran):,}", "contests won", f"{lost:,} lost, {undecided:,} undecided"),
        *([targets] if met + missed + unknown else []),
        (text.count(rows["ranks"].max()), "ranks at most", first["devices"] or "unnamed devices"),
        (text.clean(first["torch"], 16) or None, "torch", f"number format {first['dtype']}"),
        (apart_words, "losses differ at most", f"relative, of {allowed} allowed"),
    ]
    return Facts(facts)


def _label(row: "pd.Series[Any]", *, several: bool) -> str:
    return f"{row['peer']}  {row['grid']}" + (f"  {row['network']}" if several else "")


def _figure(name: str, rows: pd.DataFrame) -> Figure:
    return ratios(
        name,
        rows,
        other="peer",
        label=lambda row: _label(row, several=rows["network"].nunique() > 1),
        heads=("ours", "peer's"),
        beside=lambda row: (text.seconds(row["ours_s"]), text.seconds(row["peer_s"])),
        columns=["peer", "grid", "network", "ours_s", "peer_s"],
        remark=NOTES["intervals"],
    )
