"""Trainers' own tables: predicted times beside published ones, and rates beside measured and predicted ones."""

import math
from typing import Any

import pandas as pd

from engine import published
from engine.published import Number
from engine.result import metrics
from engine.result.gate import Interval
from engine.validation.document import Validation
from engine.validation.trainer_rows import Limits, TrainerRow, TrainerVerdict, judge, rules
from reports import text
from reports.columns import columns_of
from reports.frames.published_rows import ran_as
from reports.page import Block, Column, Figure, Figures, Paragraph, Table
from reports.plots import lines as chart
from reports.plots.canvas import Scale
from reports.plots.lines import Line

NOTE = (
    "Published by the trainers themselves, of machines that nobody here has calibrated, and predicted by what their "
    "kind of card reaches (systems/devices), which was fitted to the rows named beforehand (engine/validation/rows/"
    "trainers.yaml). Other rows of those networks judge nothing. Of selective checkpointing the mean of recomputing "
    "nothing and everything counts. Kernels of compiled rows are fused, and what a trainer's program does to memory "
    "beside is counted (programs.yaml there)."
)
RATES = (
    "A rate is of all devices together. The measured peer is torch's FSDP2, or torchtitan where the row is compiled: "
    "the fastest that was measured of that batch and its micro-batches, in turns with the engine. Where a row computes "
    "again selectively both computed everything again."
)
PEERS = {False: "fsdp2", True: "torchtitan"}
"""Beginnings of the names of the peers that redo published rates, by whether they compile on GPUs."""
COLOURS = {"judged": "blue", "of a fitted network": "muted", "fitted": "gold"}


def blocks(validation: Validation) -> list[Block]:
    """Return all that the model's page shows of trainers' tables; nothing where none was predicted."""
    rows = validation.trainers
    if not rows:
        return []
    limits = rules().limits
    data = pd.DataFrame([_predicted(row) for row in rows])
    said = [Paragraph(verdict_text(one, limits)) for one in judge(rows, limits)]
    return [Paragraph(NOTE), *said, Figures((_figure(data),)), _table(data)]


def verdict_text(one: TrainerVerdict, limits: Limits) -> str:
    """Say how far off the judged rows of a system are, and whether both limits hold."""
    return (
        f"{text.clean(one.system, 60)}: over {text.plural(one.judged, 'row')} that nothing was fitted to the median "
        f"absolute error is {text.percent(one.median)} (interval {_percents(one.median_interval)}), by data sheets "
        f"alone {text.percent(one.by_sheets)}. At most {text.percent(limits.median)}: {one.close}. {one.held} of "
        f"{one.judged} published times lie in the predicted interval (share {_percents(one.held_interval)}). At least "
        f"{text.percent(limits.held)}: {one.holds}."
    )


def _percents(ends: Interval) -> str:
    known = all(math.isfinite(end) for end in ends)
    return f"{text.percent(ends.low)} to {text.percent(ends.high)}" if known else "not known"


def _predicted(row: TrainerRow) -> dict[str, Any]:
    return {
        "system": text.clean(row.system, 60),
        "model": text.clean(row.model, 60),
        "ranks": row.devices,
        "length": row.sequence,
        "micro_batch": row.micro_batch,
        "recomputed": row.recomputed,
        "compiled": "yes" if row.compiled else "",
        "time_s_published": text.number(row.measured_s),
        "predicted_s": text.number(row.predicted_s),
        "low_s": text.number(row.low_s),
        "high_s": text.number(row.high_s),
        "error": text.number(row.error),
        "sheets": metrics.prediction_error(row.by_sheets_s, row.measured_s),
        "use": row.use,
        "lacking": text.clean(row.lacking),
        "paper": text.clean(row.source, 80),
    }


def _figure(data: pd.DataFrame) -> Figure:
    limit = rules().limits.median
    dots = [
        Line.of(data[data["use"] == use], "time_s_published", "predicted_s", colour, use, kind="dots")
        for use, colour in COLOURS.items()
        if (data["use"] == use).any()
    ]
    drawing = chart.against(dots, Scale("published seconds"), Scale("predicted seconds"), within=limit)
    caption = f"On the line prediction and publication agree; dotted: {text.percent(limit)} above and below."
    said = f"{text.plural(len(data), 'step')} of trainers' tables, predicted over published. {caption}"
    return Figure("Steps of trainers' tables", caption, drawing, data, "trainers", said)


def _table(data: pd.DataFrame) -> Table:
    columns = columns_of(
        "system model ranks",
        Column("Tokens of a sequence", "length", text.count),
        "micro_batch",
        Column("Recomputed", "recomputed", numeric=False),
        Column("Compiled", "compiled", numeric=False, missing="no"),
        "time_s_published predicted_s error",
        Column("Error by data sheets", "sheets", text.signed, figure="prediction_error"),
        Column("For", "use", numeric=False),
        Column("Not in the engine", "lacking", numeric=False, missing="nothing"),
        "paper",
    )
    return Table("Trainers' steps, predicted and published", columns, data, "trainers-all")


def rates(contests: pd.DataFrame, validation: Validation | None) -> Table:
    """Make the table of published rates, with what was measured of both sides and what is predicted.

    contests: points of the study of baselines.
    """
    predicted = {_key(row): row for row in (validation.trainers if validation else ())}
    rows = [_rate(one, contests, predicted) for one in published.select(metric="tokens_per_s")]
    columns = columns_of(
        "paper system model ranks",
        Column("Tokens of a sequence", "length", text.count),
        Column("Format", "dtype", numeric=False),
        Column("Published tokens/s", "tokens_per_s_published", text.significant),
        Column("Predicted", "predicted_tokens_per_s", text.significant, missing="not predicted", figure="rate"),
        Column("Measured, the peer", "peer_tokens_per_s", text.significant, missing="not measured", figure="rate"),
        Column("ours", "ours_tokens_per_s", text.significant, missing="not measured", figure="rate"),
        Column("Not in the engine", "lacking", numeric=False, missing="nothing"),
    )
    return Table("Trainers' own tables", columns, pd.DataFrame(rows), "trainers-rates", RATES)


def _key(row: TrainerRow) -> tuple[object, ...]:
    return row.system, row.model, row.devices, row.sequence, row.sequences, "bf16", row.compiled


def _rate(one: Number, contests: pd.DataFrame, predicted: dict[tuple[object, ...], TrainerRow]) -> dict[str, Any]:
    assert one.sequence
    assert one.batch_tokens
    system, model = published.machine_name(one.system), one.model.lower()
    key = (system, model, one.devices, one.sequence, one.batch_tokens // one.sequence, one.dtype, one.compiled)
    step = predicted.get(key)
    peer, ours = _measured(contests, system, model, one)
    return {
        "paper": one.source,
        "system": system,
        "model": model,
        "ranks": one.devices,
        "length": one.sequence,
        "dtype": one.dtype + (", compiled" if one.compiled else ""),
        "tokens_per_s_published": one.si,
        "predicted_tokens_per_s": one.batch_tokens / step.predicted_s if step else math.nan,
        "peer_tokens_per_s": peer,
        "ours_tokens_per_s": ours,
        "lacking": one.lacking,
    }


def _measured(contests: pd.DataFrame, system: str, model: str, one: Number) -> tuple[float, float]:
    """Return the tokens per second of the fastest of PEERS that ran as the row did, and the engine's in turns."""
    if contests.empty:
        return math.nan, math.nan
    same = (contests["system"] == system) & (contests["model"] == model) & (contests["ranks"] == one.devices)
    trainers = contests["peer"].str.startswith(PEERS[one.compiled])
    rows = contests[same & trainers & (contests["jobs"] > 0)]
    ran = [ran_as(row, one) for row in rows.to_dict("records")]
    rows = rows[pd.Series(ran, index=rows.index, dtype=bool)].dropna(subset=["peer_tokens_per_s"])
    if rows.empty:
        return math.nan, math.nan
    best = rows.sort_values("peer_tokens_per_s", kind="stable").iloc[-1]
    return float(best["peer_tokens_per_s"]), float(best["ours_tokens_per_s"])
