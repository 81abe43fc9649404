"""Peers: the engine's step time by that of other people's parallelism, in turns in the same processes."""

from typing import Any

import pandas as pd

from reports import dots, text
from reports.contests import CLEARANCE, FEWEST_JOBS, FEWEST_ROUNDS, SERIES, points
from reports.dots import Dot
from reports.methods import TOO_NARROW
from reports.page import Block, Column, Facts, Figure, Figures, Page, Paragraph, Section, Table, nothing_measured
from reports.study import ContestStudy

TITLE = "Peers"
SUMMARY = (
    "Step times against plain PyTorch, DDP, FSDP2, HSDP and DTensor on the same ranks, with how sure and how equal."
)
LEAD = (
    "The same network from the same weights on the same batches, trained by the engine on a grid and by other people's "
    "parallelism that does what the grid does. Both live in the same processes and take turns, round by round, so that "
    "whatever disturbs the machine disturbs both. A ratio is the engine's step time by the peer's: below 1 the engine "
    "is faster. Before anything is timed both must have the same losses and gradient norms."
)
HOW = (
    "The paired ratio is the median over rounds of the engine's time by the peer's, each the median of its steps in "
    "the round; its interval (confidence 0.95) is bootstrapped over jobs and rounds. The ratio of medians takes all "
    "steps of a job together and is what a target is set for; its range is over jobs. A contest is won where the whole "
    f"interval is below {1 - CLEARANCE:g} and lost where it is above {1 + CLEARANCE:g}: where a process happens to "
    f"place its memory makes one side faster by about {text.percent(CLEARANCE)} for as long as it lives. Else it is "
    f"undecided, and of fewer than {FEWEST_JOBS} jobs or {FEWEST_ROUNDS} rounds too: one job "
    "does not tell how jobs differ. Holding the same contest again adds its jobs. " + TOO_NARROW
)
RUN = "reframe -c suites/peers.py --system local"
MOST_SECTIONS = 12
MOST_ROWS = 40
COLOURS = {"won": "blue", "lost": "red"}


def build(table: pd.DataFrame) -> Page:
    """The page; without contests it says what to run."""
    if table.empty:
        return Page(TITLE, LEAD, (nothing_measured(RUN),), "nothing measured", empty=True)
    contests = points(table)
    contests = contests.sort_values([*SERIES, "ratio", "peer"], kind="stable")
    groups = [rows for _, rows in contests.groupby(SERIES, dropna=False, sort=True)]
    drawn = sorted(groups, key=lambda rows: -int((rows["jobs"] > 0).sum()))[:MOST_SECTIONS]
    titles = [_title(rows.iloc[0]) for rows in drawn]
    names = text.slugs(titles)
    sections = [_section(*one) for one in zip(names, titles, drawn, strict=True)]
    details: tuple[Block, ...] = (Paragraph(HOW), *_failures(table), _provenance(table))
    if len(groups) > MOST_SECTIONS:
        details = (_contests("all", contests), *details)
    sections.append(Section("Details", details))
    return Page(TITLE, LEAD, tuple(sections), _headline(contests))


STUDY = ContestStudy("peers", TITLE, SUMMARY, 6, build)


def _title(row: "pd.Series[Any]") -> str:
    series = "" if row["series"] in ("", row["system"]) else f"{row['series']} series"
    torch = row["torch"] and f"torch {row['torch']}"
    words = (row["system"] or "unnamed system", row["partition"], series, row["model"], row["dtype"], row["devices"])
    return text.clean(", ".join(word for word in (*words, torch) if word), 120)


def _headline(contests: pd.DataFrame) -> str:
    held = contests[contests["jobs"] > 0]
    if held.empty:
        return "no contest ended well"
    won, lost, undecided = _count(held)
    return f"{won:,} of {text.plural(len(held), 'contest')} won, {lost:,} lost, {undecided:,} undecided"


def _count(held: pd.DataFrame) -> tuple[int, int, int]:
    """Contests won, lost, and those of which the interval doesn't tell."""
    won, lost, undecided = (int((held["verdict"] == verdict).sum()) for verdict in ("won", "lost", "undecided"))
    return won, lost, undecided


def _section(name: str, title: str, rows: pd.DataFrame) -> Section:
    held = rows[rows["jobs"] > 0]
    blocks: list[Block] = [_facts(rows, held)]
    if held.empty:
        blocks = [Paragraph("Not measured: no contest of this series ended well.")]
    else:
        blocks.append(Figures((_figure(name, rows),), wide=True))
    blocks.append(_contests(name, rows))
    return Section(title, tuple(blocks), f"series-{name}")


def _facts(rows: pd.DataFrame, held: pd.DataFrame) -> Facts:
    first = rows.iloc[0]
    won, lost, undecided = _count(held)
    apart = held["losses"].max()
    return Facts(
        (
            (f"{won:,} of {len(held):,}", "contests won", f"{lost:,} lost, {undecided:,} undecided"),
            (text.count(rows["ranks"].max()), "ranks at most", first["devices"] or "unnamed devices"),
            (text.clean(first["torch"], 16) or None, "torch", f"number format {first['dtype']}"),
            (
                None if pd.isna(apart) else f"{apart:.1e}",
                "losses differ at most",
                f"relative, of {held['tolerance'].max():.1e} allowed",
            ),
        )
    )


def _figure(name: str, rows: pd.DataFrame) -> Figure:
    shown = rows.head(MOST_ROWS)
    drawn = [
        Dot(
            f"{row['peer']}  {row['grid']}",
            row["ratio"], row["low"], row["high"], row["of_medians_low"], row["of_medians_high"], row["of_medians"],
            float(row["target"] or "nan"), COLOURS.get(row["verdict"], "muted"),
            (
                *((f"{row['ratio']:.3f}", f"{row['low']:.3f}\u2013{row['high']:.3f}") if row["jobs"] else ("", "")),
                *((text.seconds(row["ours_s"]), text.seconds(row["peer_s"])) if row["jobs"] else ("", "")),
            ),
        )
        for _, row in shown.iterrows()
    ]  # fmt: skip
    title = "Step time by the peer's"
    caption = (
        "Dot and whiskers: paired ratio with its interval. Open circle and pale band: ratio of medians with its range "
        f"over jobs. Dashed: the target. {TOO_NARROW} Grey: undecided, of fewer than {FEWEST_JOBS} jobs or "
        f"{FEWEST_ROUNDS} rounds, or not clear of 1 by {text.percent(CLEARANCE)}."
    )
    if len(rows) > len(shown):
        caption += f" The first {MOST_ROWS} contests."
    told = [
        f"{row['peer']} on {row['grid']}: {row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
        for _, row in shown.iterrows()
        if row["jobs"]
    ]
    svg = dots.around_one(
        drawn, ("the engine is faster", "the peer is faster"), name=f"{name}-ratios", title=title,
        description="Paired ratios. " + ". ".join(told), columns=("paired", "interval", "ours", "peer's"),
    )  # fmt: skip
    keys = [
        "peer", "grid", "ratio", "low", "high", "of_medians", "of_medians_low", "of_medians_high", "target", "ours_s",
        "peer_s",
    ]  # fmt: skip
    return Figure(title, caption, svg, shown[keys], f"{name}-ratios")


def _ratio(value: float) -> str:
    return f"{value:.3f}"


def _tiny(value: float) -> str:
    return f"{value:.1e}"


def _contests(name: str, rows: pd.DataFrame) -> Table:
    """Every contest with all that was measured."""
    columns = (
        Column("Peer", "peer", numeric=False),
        Column("which is", "peer_is", numeric=False),
        Column("Grid", "grid", numeric=False),
        Column("Outcome", "verdict", numeric=False),
        Column("Paired ratio", "ratio", _ratio, figure="paired_ratio"),
        Column("from", "low", _ratio, figure="paired_ratio"),
        Column("to", "high", _ratio, figure="paired_ratio"),
        Column("Ratio of medians", "of_medians", _ratio, figure="ratio_of_medians"),
        Column("lowest job", "of_medians_low", _ratio, figure="ratio_of_medians"),
        Column("highest job", "of_medians_high", _ratio, figure="ratio_of_medians"),
        Column("Target", "target", numeric=False, missing="none"),
        Column("Processor time", "processor", _ratio, figure="ratio_of_medians"),
        Column("Our step", "ours_s", text.seconds),
        Column("Peer's step", "peer_s", text.seconds),
        Column("Jobs", "jobs", text.count),
        Column("Rounds", "rounds", text.count),
        Column("Losses differ", "losses", _tiny, figure="relative_difference"),
        Column("Gradient norms differ", "norms", _tiny, missing="not kept", figure="relative_difference"),
        Column("Tolerance", "tolerance", _tiny),
        Column("Steps compared", "compared", text.count),
        Column("Sequences", "sequences", numeric=False, missing="unknown"),
        Column("of tokens", "sequence", numeric=False, missing="unknown"),
        Column("Checkpointing", "checkpointing", numeric=False, missing="unknown"),
        Column("Threads", "threads", numeric=False, missing="unknown"),
        Column("Overlap", "overlap", numeric=False, missing="unknown"),
        Column("Memory, fullest rank", "memory_max", text.memory, missing="not told"),
        Column("Network", "network", numeric=False, missing="not told"),
    )
    note = "Losses and gradient norms: the largest relative difference in a step before those that were timed. Memory: "
    note += "of a process with both models."
    return Table("Contests", columns, rows.assign(lost=rows["jobs"] == 0), f"{name}-contests", note, "lost")


def _failures(table: pd.DataFrame) -> list[Table]:
    data = table[table["status"] != "ok"].sort_values("end", ascending=False, kind="stable")
    if data.empty:
        return []
    columns = (
        Column("Peer", "peer", numeric=False),
        Column("Grid", "grid", numeric=False),
        Column("System", "system", numeric=False, missing="unnamed"),
        Column("Model", "model", numeric=False, missing="unknown"),
        Column("Number format", "dtype", numeric=False),
        Column("End", "end", text.moment, missing="unknown"),
        Column("Reason", "reason", numeric=False, wide=True),
        Column("Result", "source", numeric=False, wide=True),
    )
    return [Table("Failed contests", columns, data, "failed")]


def _provenance(table: pd.DataFrame) -> Table:
    """Every contest of every command, newest first."""
    data = table.sort_values("end", ascending=False, kind="stable").assign(jobs=table["measured"].map(len))
    columns = (
        Column("Start", "start", text.moment, missing="unknown"),
        Column("End", "end", text.moment, missing="unknown"),
        Column("Status", "status", numeric=False),
        Column("Peer", "peer", numeric=False),
        Column("Grid", "grid", numeric=False),
        Column("System", "system", numeric=False, missing="unnamed"),
        Column("Partition", "partition", numeric=False, missing="none"),
        Column("Model", "model", numeric=False, missing="unknown"),
        Column("Number format", "dtype", numeric=False),
        Column("Jobs", "jobs", text.count),
        Column("Warm-up steps", "warmup", numeric=False, missing="unknown"),
        Column("Steps a round", "steps_per_round", numeric=False, missing="unknown"),
        Column("Load before", "load", lambda value: f"{value:.1f}"),
        Column("Commit", "commit", lambda commit: commit[:12], numeric=False, missing="unknown"),
        Column("Working tree", "dirty", numeric=False),
        Column("Launcher", "launcher", numeric=False, missing="none"),
        Column("Network", "transport", numeric=False, missing="not told", wide=True),
        Column("Test failed later", "remark", numeric=False, missing="no", wide=True),
        Column("Hosts", "hosts", numeric=False, missing="unknown", wide=True),
        Column("Device", "devices", numeric=False, missing="unknown", wide=True),
        Column("Versions", "versions", numeric=False, missing="unknown", wide=True),
        Column("Result", "source", numeric=False, wide=True),
    )
    return Table("Provenance of every contest", columns, data, "provenance")
