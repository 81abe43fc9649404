"""Peak: what a device reaches in matrix products (axonn-sc24 VI-C), memory and launches, alone or all at once, what it
sends to others, and the flops of a step.
"""

from typing import Any

import pandas as pd

from reports import text
from reports.columns import columns_of, failures, provenance
from reports.figures import counted_flops, gemm, links, memory
from reports.frames.frame import SERIES, Frames, series_title
from reports.frames.jobs import grouped
from reports.page import (
    MOST_SECTIONS,
    Block,
    Column,
    Facts,
    Figures,
    Page,
    PageSection,
    Paragraph,
    Table,
    nothing_measured,
)
from reports.pages.study import Study
from reports.read import peaks, published
from reports.words import STUDIES

KINDS = ("gemm", "memory", "latency", "flops", "collectives", "p2p")
TOGETHER = [*(key for key in SERIES if key != "dtype"), "ranks", "threads"]


def build(mine: Frames, everything: Frames) -> Page:
    sections = [_section(*one, mine) for one in grouped(mine.runs, TOGETHER, _title, MOST_SECTIONS)]
    last = nothing_measured(*STUDIES["peak"].run)
    if sections:
        last = PageSection("Details", [_best(mine.runs), *failures(mine.runs, "all_jobs"), provenance(mine.runs)])
    return Page([*sections, last, _published()], _headline(mine), empty=not sections)


STUDY = Study("peak", 5, lambda runs: runs["kind"].isin(KINDS), build)


def at_once(run: "pd.Series[Any]") -> str:
    """Say how many ranks multiplied, and with how many threads where processors did."""
    ranks = "one rank alone" if run["ranks"] == 1 else f"{run['ranks']:,} ranks at once"
    threads = run["threads"] if run["device_kind"] == "cpu" else ""
    words = f", {threads} {'thread' if threads == '1' else 'threads'}{' each' if run['ranks'] > 1 else ''}"
    return ranks + (words if threads else "")


def _title(run: "pd.Series[Any]") -> str:
    anywhere = run.copy()
    anywhere["dtype"] = ""  # a section has all number formats
    return text.clean(f"{series_title(anywhere)}, {at_once(run)}", 160)


def _headline(mine: Frames) -> str:
    done = mine.runs.dropna(subset="best_flops_per_s").sort_values("best_flops_per_s")
    if not done.empty:
        best = done.iloc[-1]
        rate = f"{text.flops(best['best_flops_per_s'])} a rank in {best['dtype']}"
        return f"best {rate} on {best['system'] or 'an unnamed system'}, {at_once(best)}"
    if len(mine.stream) or len(mine.launches):
        return "memory and launches only, no matrix products"
    if len(mine.rings) or len(mine.broadcasts) or len(mine.transfers):
        return "bandwidth between ranks only, no matrix products"
    if len(mine.counted_flops):
        return "flops of a step only, no matrix products"
    return "nothing measured"


def _section(name: str, title: str, rows: pd.DataFrame, mine: Frames) -> PageSection:
    """Say what as many ranks of one system measured, whatever the number format."""
    system = rows.iloc[0]["system"]
    formats = gemm.by_format(mine, rows)
    facts = [gemm.best_rate(dtype, sizes, rows) for dtype, sizes in formats.items()]
    figures = [
        gemm.curve(f"{name}-{slug}", dtype, sizes, peaks.facts(system, dtype))
        for (dtype, sizes), slug in zip(formats.items(), text.slugs(formats), strict=True)
    ]
    tables = [gemm.size_table(name, formats)] if any(len(sizes) for sizes in formats.values()) else []
    if len(modes := gemm.by_mode(mine, rows)):
        tables.append(gemm.mode_table(name, modes))
    if len(kernels := memory.by_kernel(mine, rows)):
        facts.append(memory.triad(kernels))
        figures.append(memory.bandwidths(f"{name}-memory", kernels, peaks.advertised_bandwidth(system)))
        tables.append(memory.kernel_table(name, kernels))
    if len(ways := memory.by_launch(mine, rows)):
        facts.append(memory.launch_latency(ways))
        tables.append(memory.launch_table(name, ways))
    if len(shapes := links.by_shape(mine, rows)):
        facts.append(links.ring_bandwidth(shapes))
        tables.append(links.ring_table(name, shapes))
    if len(groups := links.by_group(mine, rows)):
        figures.append(links.pair_map(name, groups))
        tables.append(links.broadcast_table(name, groups))
    if len(sizes := links.by_size(mine, rows)):
        facts.append(links.quickest_message(sizes))
        figures += links.transfer_times(name, sizes)
        tables.append(links.transfer_table(name, sizes))
    if len(steps := counted_flops.by_step(mine, rows)):
        facts.append(counted_flops.farthest(steps))
        tables.append(counted_flops.step_table(name, steps))
    drawn = [Figures(shown)] if (shown := [one for one in figures if one]) else []
    blocks: list[Block] = [Paragraph("Not measured: no job of this system ended well.")]
    if drawn or tables:
        blocks = [Facts(facts), *drawn, *tables]
    return PageSection(title, blocks, f"series-{name}", one_of_many=True)


def _best(runs: pd.DataFrame) -> Table:
    data = runs.dropna(subset="best_flops_per_s").sort_values(["system", "dtype", "ranks", "end"])
    columns = columns_of(
        "system partition dtype ranks threads best_flops_per_s end",
        missing={"threads": "not recorded"},
        ranks="Ranks at once",
        threads="Threads of each",
    )
    return Table("Best rate of every job", columns, data, "best_rates")


def _published() -> PageSection:
    columns = columns_of(
        "system device dtype metric", Column("Rate", "value", text.flops), "source note", source="Source"
    )
    note = "Published figures, not measured here."
    return PageSection("Published figures", (Table("Published peaks", columns, published.peaks(), "published", note),))
