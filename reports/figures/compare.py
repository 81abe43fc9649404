"""Systems compared: what a device of each reaches of the same work, beside the published figures and the peaks."""

from typing import Any

import pandas as pd

from engine.result import metrics
from reports import text
from reports.columns import NO_PEAK, columns_of
from reports.derived import by_row
from reports.page import Block, Column, Figure, Figures, PageSection, Paragraph, Table
from reports.plots.rows import Dot, dots
from reports.read import published

TITLE = "Systems compared"
MACHINE = ["system", "partition"]
WORK = ["model", "parameters", "sequence", "dtype", "batch_size", "checkpointing", "ranks"]
"""Columns that are equal where two machines did the same work; the layout may differ."""
FEWEST = 2
MOST_TOLD = 12


def compared(points: pd.DataFrame) -> list[PageSection]:
    """Make the section that compares machines; none of a single one. points: of a scaling study, see points.py."""
    measured = points.dropna(subset="hardware_flops_per_s")
    if len(measured[MACHINE].drop_duplicates()) < FEWEST:
        return []
    rows, alone = _chosen(measured)
    blocks: list[Block] = [Figures([_figure(rows)], wide=True), _table(rows)] if len(rows) else []
    left = [Paragraph(_alone(alone, len(rows)))] if len(alone) else []
    return [PageSection(TITLE, [*blocks, *left], "compared")]


def _chosen(measured: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Choose a point of each machine: of the work that most machines have done, then of what most of the others have.

    Returns these with their work's place, the fastest machine of each work first, and the largest points of machines
    that share none.
    """
    fastest = measured.sort_values("hardware_flops_per_s", ascending=False).drop_duplicates([*MACHINE, *WORK])
    rest = fastest.assign(
        machine=fastest.groupby(MACHINE).ngroup(), work=fastest.groupby(WORK, dropna=False).ngroup()
    ).sort_values(["parameters", "ranks"], ascending=False, kind="stable")
    found = list[pd.DataFrame]()
    while (size := rest.groupby("work")["machine"].transform("size")).max() >= FEWEST:
        here = rest[rest["work"] == rest["work"].iloc[int(size.argmax())]]
        found.append(here.assign(place=len(found)))
        rest = rest[~rest["machine"].isin(here["machine"])]
    alone = rest.drop_duplicates("machine").sort_values(MACHINE)
    return _with_published(pd.concat(found, ignore_index=True)) if found else rest.head(0), alone


def _with_published(rows: pd.DataFrame) -> pd.DataFrame:
    """Add rates of a device: of ours, with its ends, and of the published point of the same model, batch and size."""
    ranks = rows["ranks"].astype(float)
    rates = {"rate": "hardware_flops_per_s", "rate_low": "hardware_flops_per_s_low"}
    rates |= {"rate_high": "hardware_flops_per_s_high"}
    rows = rows.assign(**{name: by_row(metrics.per_device, rows[of], ranks) for name, of in rates.items()})
    theirs = published.weak_scaling()
    theirs = theirs[theirs["framework"].str.contains("AxoNN")].assign(
        rate_published=by_row(metrics.per_device, theirs["hardware_flops_per_s"], theirs["ranks"].astype(float)),
        lower=theirs["system"].str.lower(),
        model=theirs["model"].str.lower(),
    )
    theirs = theirs.dropna(subset="rate_published").drop_duplicates(["lower", "model", "ranks", "batch_tokens"])
    keys = ["lower", "model", "ranks", "batch_tokens"]
    known = rows.assign(lower=rows["system"].str.lower(), own=rows["model"], model=rows["model"].str.lower())
    both = known.merge(theirs[[*keys, "rate_published", "paper"]], on=keys, how="left")
    both = both.assign(model=both["own"], paper=both["paper"].fillna(""))
    return both.sort_values(["place", "rate"], ascending=[True, False], kind="stable", ignore_index=True)


def _work(row: "pd.Series[Any]") -> str:
    """Say what a machine did."""
    recomputes = {"True": "recomputation", "False": "no recomputation"}.get(str(row["checkpointing"]), "")
    batch = f"batches of {row['batch_size']}" if row["batch_size"] else ""
    on = text.plural(int(row["ranks"]), "device")
    return text.clean(
        ", ".join(word for word in (row["model"], row["dtype"], batch, recomputes, f"on {on}") if word), 110
    )


def _machine(row: "pd.Series[Any]", *, several: bool) -> str:
    """Name the system, with its partition where it has several here."""
    return text.title(row["system"], row["partition"] if several else "")


def _labels(rows: pd.DataFrame) -> list[str]:
    several = rows.groupby("system")["partition"].transform("nunique") > 1
    return [_machine(row, several=bool(more)) for (_, row), more in zip(rows.iterrows(), several, strict=True)]


def _figure(rows: pd.DataFrame) -> Figure:
    factor, letter = text.prefix(float(rows["rate"].max()))
    notes = [
        (text.significant(row["rate"] / factor, 3), *(_share(row[key]) for key in ("hfu", "of_empirical")))
        for _, row in rows.iterrows()
    ]
    drawn = [
        Dot(
            label,
            row["rate_low"] / factor,
            row["rate_high"] / factor,
            row["rate_published"] / factor,
            _work(row) if begins else "",
            note,
            ratio=row["rate"] / factor,
            target=row["advertised"] / factor,
            colour="blue",
        )
        for label, note, begins, (_, row) in zip(
            _labels(rows), notes, ~rows.duplicated("place"), rows.iterrows(), strict=True
        )
    ]
    named = [("● measured", "blue")]
    named += [("○ published", "red")] if rows["rate_published"].notna().any() else []
    named += [("❙ advertised peak", "muted")] if rows["advertised"].notna().any() else []
    caption = (
        "Median over jobs of the fastest layout, the fastest system on top; bars span the jobs. Recomputation counted. "
        "Under each head all did the same work: one network, number format, sequence, batch and device count."
    )
    papers = [paper for paper in rows["paper"].drop_duplicates() if paper]
    caption += f" Published: {' and '.join(papers)}, same network, batch and device count." if papers else ""
    heads = (f"{letter}flop/s", "of advertised", "of empirical")
    drawing = dots(drawn, f"{letter}flop/s of a device", named, columns=heads)
    said = "; ".join(f"{row.label} {text.significant(row.ratio, 3)} {letter}flop/s" for row in drawn)
    keys = [*MACHINE, *WORK, "rate", "rate_low", "rate_high", "hfu", "of_empirical", "advertised", "rate_published"]
    csv = rows[[*keys, "jobs", "grid"]]
    return Figure(
        "What a device reaches of the same work", caption, drawing, csv, "compared-rates", f"{said}. {caption}"
    )


def _share(value: float) -> str:
    return text.percent(value) if value == value else ""


def _table(rows: pd.DataFrame) -> Table:
    columns = columns_of(
        "system partition",
        Column("A device, flop/s", "rate", text.flops, spread=("rate_low", "rate_high"), figure="rate"),
        "hfu of_empirical",
        Column("Published, a device", "rate_published", text.flops, missing="none", figure="rate"),
        "model dtype ranks grid batch_size jobs",
        missing={"hfu": NO_PEAK},
    )
    note = "Those of the figure. In brackets the slowest and the fastest job; all else that a system ran is below."
    return Table("Systems at the same work", columns, rows, "compared", note)


def _alone(alone: pd.DataFrame, compared: int) -> str:
    """Name the machines that nothing can be compared with."""
    said = [f"{label} ({_work(row)})" for label, (_, row) in zip(_labels(alone), alone.iterrows(), strict=True)]
    more = f" and {len(said) - MOST_TOLD} more" if len(said) > MOST_TOLD else ""
    start = "No other system did the work of" if compared else "No two systems did the same work, so none is compared:"
    return f"{start} {'; '.join(said[:MOST_TOLD])}{more}."
