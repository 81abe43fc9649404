"""Predicted points for the scaling pages, of machines where nothing was measured: never in a figure with measured ones.

Weak scaling is that of the published series which the newest validation predicts; strong scaling that of plans which
ask for one model and batch on several numbers of devices.
"""

from collections.abc import Sequence

import pandas as pd

from reports import text
from reports.columns import columns_of
from reports.figures import model_published
from reports.figures.scaling import DEVICES
from reports.frames.frame import Frames
from reports.frames.predictions import Predictions, plan_rows, published_rows
from reports.page import Block, Figure, Figures, PageSection, Paragraph, Table
from reports.plots.canvas import Scale
from reports.plots.lines import Line, lines
from reports.words import NOTES

TITLE = "Predicted, where nothing was measured"
MOST_FIGURES = 6


def weak(mine: Frames, predictions: Predictions) -> list[PageSection]:
    """Show the published series of machines without a measured point, as predicted; nothing where there is none."""
    if predictions.validation is None:
        return []
    rows = published_rows(predictions.validation.result)
    rows = rows[~rows["system"].str.lower().isin(_measured(mine))]
    groups = [part for _, part in rows.groupby(["system", "source"], sort=False) if part["ranks"].nunique() > 1]
    titles = [f"{part['system'].iloc[0]}, {part['paper'].iloc[0]}" for part in groups]
    return _section(titles, groups, "Short dashes with open marks: published. Ringed: what the model was fitted to.")


def strong(mine: Frames, predictions: Predictions) -> list[PageSection]:
    """Plans of one model and batch on several numbers of devices, on machines without a measured point."""
    by = ["system", "model", "tokens", "precision", "recomputed"]
    rows = pd.DataFrame(
        [
            {
                "system": text.clean(one.result.system, 120),
                "model": text.clean(one.result.model, 120),
                "ranks": float(one.result.devices),
                "tokens": text.number(one.result.tokens),
                "precision": text.clean(one.result.precision, 40),
                "recomputed": one.result.activations,
                **plan_rows(one.result).iloc[0],
            }
            for one in predictions.plans
            if one.result.rows
        ],
        columns=[*by, "ranks", "grid", "micro_batch", "predicted_s", "low_s", "high_s"],
    )
    rows = rows[~rows["system"].str.lower().isin(_measured(mine))].dropna(subset="predicted_s")
    newest = rows.drop_duplicates([*by, "ranks"]).sort_values([*by, "ranks"])
    groups = [part for _, part in newest.groupby(by, sort=False) if len(part) > 1]
    titles = [
        f"{first['model']} on {first['system']}, {text.tokens(first['tokens'])} a batch in {first['precision']}"
        for first in (part.iloc[0] for part in groups)
    ]
    return _section(titles, groups, "Of the newest plan for each number of devices, its first grid. Dotted: ideal.")


def _measured(mine: Frames) -> set[str]:
    return set(mine.runs.loc[mine.runs["status"] == "ok", "system"].str.lower())


def _section(titles: Sequence[str], groups: Sequence[pd.DataFrame], caption: str) -> list[PageSection]:
    if not groups:
        return []
    shown = list(zip(text.slugs(titles), titles, groups, strict=True))[:MOST_FIGURES]
    figures = [_figure(f"predicted-{name}", title, rows, caption) for name, title, rows in shown]
    table = pd.concat(groups, ignore_index=True)
    columns = columns_of("system ranks model predicted_s grid micro_batch", predicted_s="Time per batch, predicted")
    blocks: tuple[Block, ...] = (
        Paragraph(NOTES["predicted"]),
        Figures(tuple(figures)),
        Table("Predicted points", columns, table, "predicted-points"),
    )
    return [PageSection(TITLE, blocks, "predicted")]


def _figure(name: str, title: str, rows: pd.DataFrame, caption: str) -> Figure:
    """Draw times over devices: of one model on logarithmic scales, where twice the devices would ideally halve them."""
    if "time_s_published" in rows:
        drawn, scale = model_published.lines(rows), Scale("seconds per batch", from_zero=True)
    else:
        ranks, seconds = rows["ranks"].tolist(), rows["predicted_s"].tolist()
        predicted = Line.of(rows, "ranks", "predicted_s", "blue", "predicted", kind="predicted")
        ideal = [seconds[0] * ranks[0] / count for count in ranks]
        drawn, scale = (
            [Line(ranks, ideal, "muted", kind="guide"), predicted.between(rows, "low_s", "high_s")],
            Scale("seconds per batch", "log10"),
        )
    said = [
        f"{row['model']} on {text.count(row['ranks'])}: {text.seconds(row['predicted_s'])}"
        for _, row in rows.dropna(subset=["ranks", "predicted_s"]).iterrows()
    ]
    words = f"Predicted, not measured. {caption}"
    data = rows.filter(["model", "ranks", "grid", "predicted_s", "low_s", "high_s", "time_s_published"])
    described = f"Predicted. {'. '.join(said)}. {words}"
    return Figure(title, words, lines(drawn, DEVICES, scale), data, name, described)
