"""Single device: tokens per second, share of the peak and memory of one device, by the engine and by others."""

from typing import Any

import pandas as pd

from reports import text
from reports.columns import columns_of
from reports.figures.contests import details, ratios
from reports.frames.contests import most_run, points
from reports.frames.frame import Frames
from reports.page import (
    MOST_SECTIONS,
    NOT_MEASURED,
    Column,
    Facts,
    Figure,
    Figures,
    Page,
    PageSection,
    Paragraph,
    Table,
)
from reports.pages.study import Study, contests_where
from reports.words import STUDIES

MACHINE = ["system", "partition", "device", "devices", "torch"]
TRAINED = ["model", "dtype", "series", "sequences", "sequence", "checkpointing", "threads", "overlap"]
PEERS = ("plain", "compile", "transformers")
"""Order of peers; others come after them."""
MOST_FACTS = 6
SHORT = 16
"""Most letters of a name in a narrow column."""


def build(mine: Frames, everything: Frames) -> Page:
    table = mine.contests
    if table.empty:
        return Page(empty=True)
    contests = points(table)
    order = {peer: place for place, peer in enumerate(PEERS)}
    contests = contests.assign(place=contests["peer"].map(lambda peer: order.get(peer, len(order))))
    contests = contests.sort_values([*MACHINE, *TRAINED, "place", "peer"], kind="stable")
    drawn = most_run(contests, MACHINE, MOST_SECTIONS)
    sections = [_section(*one) for one in text.titled(drawn, lambda rows: _title(rows.iloc[0]))]
    return Page([*sections, details(table, STUDIES["single_device"].how, contests)], _headline(contests))


STUDY = Study("single_device", 7, contests_where(lambda ran: ran["ranks"] == 1), build, "contests")


def _title(row: "pd.Series[Any]") -> str:
    torch = row["torch"] and f"torch {row['torch']}"
    return text.title(row["system"], row["partition"], row["devices"], torch)


def _headline(contests: pd.DataFrame) -> str:
    ran = contests[contests["jobs"] > 0]
    if ran.empty:
        return "no contest ended well"
    counts = [f"{(ran['verdict'] == verdict).sum():,} {verdict}" for verdict in ("won", "lost", "undecided")]
    return f"{text.plural(len(ran), 'contest')} of one device: {', '.join(counts)}"


def _section(name: str, title: str, rows: pd.DataFrame) -> PageSection:
    ran = rows[rows["jobs"] > 0]
    if ran.empty:
        return PageSection(
            title, [Paragraph("Not measured: no contest on it ended well.")], f"machine-{name}", one_of_many=True
        )
    figures = Figures([_figure(name, rows)], wide=True)
    return PageSection(title, [_facts(ran), figures, _sides(name, rows)], f"machine-{name}", one_of_many=True)


def _trained(rows: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the contests of each network, format and batch."""
    return [group for _, group in rows.groupby(TRAINED, dropna=False, sort=True)]


def _facts(ran: pd.DataFrame) -> Facts:
    """Return the answer: what the engine does in a second with each network, its share of the peak and its standing."""
    facts = []
    for rows in _trained(ran)[:MOST_FACTS]:
        engine = _engine(rows)
        rate = None if pd.isna(engine["tokens_per_s"]) else f"{text.significant(engine['tokens_per_s'])} tokens/s"
        standing = "step time " + ", ".join(
            f"{row['ratio']:.3f} of {text.clean(row['peer'], SHORT)}" for _, row in rows.iterrows()
        )
        held_bytes = "" if pd.isna(engine["bytes"]) else text.memory(engine["bytes"])
        words = ", ".join(word for word in (_share(engine), held_bytes, standing) if word)
        what = f"{text.clean(engine['model'], SHORT)}, {text.clean(engine['dtype'], SHORT)}, by the engine"
        facts.append((rate, what, words))
    return Facts(facts)


def _share(side: "dict[str, Any]") -> str:
    if not pd.isna(side["mfu"]):
        return f"MFU {text.percent(side['mfu'])}"
    return "" if pd.isna(side["of_empirical"]) else f"{text.of_empirical(side['of_empirical'])} of the empirical peak"


def _engine(rows: pd.DataFrame) -> dict[str, Any]:
    """Return the engine's side of all contests of one network: medians, and the most memory of any."""
    return {
        "model": rows["model"].iloc[0] or "unknown model",
        "dtype": rows["dtype"].iloc[0],
        "side": "engine",
        **{key: rows[f"ours_{key}"].median() for key in ("tokens_per_s", "mfu", "of_empirical")},
        "bytes": rows["ours_bytes"].max(),
        **dict.fromkeys(("ratio", "low", "high", "memory_ratio"), float("nan")),
        "verdict": "",
    }


def _peer(row: "pd.Series[Any]") -> dict[str, Any]:
    own = {key: row[f"peer_{key}"] for key in ("tokens_per_s", "mfu", "of_empirical", "bytes")}
    kept = {key: row[key] for key in ("dtype", "ratio", "low", "high", "verdict", "memory_ratio")}
    return {"model": row["model"] or "unknown model", "side": row["peer"], **own, **kept}


def _sides(name: str, contests: pd.DataFrame) -> Table:
    """Make a row a side: of each network the engine first."""
    data = pd.DataFrame(
        [side for rows in _trained(contests) for side in (_engine(rows), *(_peer(row) for _, row in rows.iterrows()))]
    )
    columns = columns_of(
        "model dtype side tokens_per_s mfu of_empirical",
        Column("Memory", "bytes", text.memory),
        "ratio verdict memory_ratio",
        missing=dict.fromkeys(("ratio", "verdict", "memory_ratio"), "\u2013"),
        ratio="Engine's step by its",
    )
    note = "The engine's own row is the median of its contests. Outcome: the engine won or lost, by the paired ratio."
    return Table("Tokens per second by side", columns, data, f"{name}-sides", note)


def _figure(name: str, rows: pd.DataFrame) -> Figure:
    rates = ("ours_tokens_per_s", "peer_tokens_per_s")
    return ratios(
        name,
        rows,
        other="other",
        label=lambda row: f"{row['model']}  {row['peer']}",
        heads=("our tokens/s", "other's"),
        beside=lambda row: (_rate(row[rates[0]]), _rate(row[rates[1]])),
        columns=["model", "dtype", "peer", *rates],
    )


def _rate(tokens_per_s: float) -> str:
    return NOT_MEASURED if pd.isna(tokens_per_s) else text.significant(tokens_per_s, 3)
