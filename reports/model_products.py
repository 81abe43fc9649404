"""Matrix products that were measured alone on a device, beside what the performance model says of each."""

from collections.abc import Sequence

import pandas as pd

from engine.result import metrics
from engine.validation.product_rows import CLOSE, RULES, DeviceProducts, ProductRow, close
from reports import text
from reports.columns import columns_of
from reports.model_published import winner
from reports.page import Block, Column, Figure, Figures, Paragraph, Table
from reports.plots.canvas import Scale
from reports.plots.lines import Line, against
from reports.predictions import seconds

SAID = (
    "Each job's products are predicted by one number, the share of the empirical peak that fits those of other jobs "
    "best. The baseline gives all of them one rate, fitted in the same way: it knows nothing of shapes. Plans for GPUs "
    "whose kernels nobody has timed take 4 us for each."
)
NO_ATTENTION = "Attention was not measured: these are products of linear layers, and of squares."


def blocks(found: Sequence[DeviceProducts]) -> list[Block]:
    """Return all that the page shows of products alone: what each rule gives, and a picture of the last of a device."""
    if not found:
        return []
    drawn = {(one.device, one.precision): one for one in found}.values()
    titled = text.titled(drawn, lambda one: text.clean(f"{one.device}, {one.precision}", 80))
    shown = [(name, title, _rows(one.rows)) for name, title, one in titled]
    figures = Figures(tuple(_figure(f"products-{name}", title, rows) for name, title, rows in shown))
    tables = [_products(f"products-{name}-all", title, rows) for name, title, rows in shown]
    return [*map(Paragraph, (SAID, *map(verdict, found), gained(found))), _jobs(found), figures, *tables]


def verdict(found: DeviceProducts) -> str:
    """Say how many of a device's products are predicted well by a rule, and whether better than at one rate."""
    of = f"On {text.clean(found.device, 80)} in {found.precision} ({text.clean(found.source, 160)})"
    errors = [[row.error for row in found.rows], [row.one_rate_error for row in found.rows]]
    better = winner(*map(metrics.mean_absolute_error, errors))
    launch = text.seconds(seconds(found.kernel_s))
    return (
        f"{of}, {RULES[found.rule]} ({launch}): {close(found.rows)} of {text.plural(len(found.rows), 'product')} lie "
        f"within {text.percent(CLOSE)}, by the baseline {close(found.rows, at_one_rate=True)}; of the "
        f"{len(found.long):,} that take more than twice as long as that, {close(found.long)} and "
        f"{close(found.long, at_one_rate=True)}. By the mean error {better}."
    )


def gained(found: Sequence[DeviceProducts]) -> str:
    """Say how many products are predicted well by tiles and waves, and how many at one rate."""
    by_rule = []
    for one in found:
        ours, flat = close(one.rows), close(one.rows, at_one_rate=True)
        of = f"{ours} instead of {flat} of {len(one.rows):,} within {text.percent(CLOSE)}"
        by_rule.append(f"{of} on {text.clean(one.device, 80)} by the {one.rule} rule")
    return f"What the model's tiles and waves gain over one rate for all: {'; '.join(by_rule)}. {NO_ATTENTION}"


def _jobs(found: Sequence[DeviceProducts]) -> Table:
    rows = [
        {
            "device": text.clean(one.device, 80), "rule": one.rule, "job": text.clean(job, 120),
            "launch": seconds(one.kernel_s), "products": len(of), "within": close(of), "share": text.number(share),
            "median": metrics.median_absolute_error([row.error for row in of]),
            "baseline": metrics.median_absolute_error([row.one_rate_error for row in of]),
        }
        for one in found
        for job, share in one.fitted.items()
        if (of := one.of(job))
    ]  # fmt: skip
    columns = columns_of(
        Column("Device", "device", numeric=False),
        Column("Rule", "rule", numeric=False),
        Column("Job", "job", numeric=False),
        Column("A kernel takes at least", "launch", text.seconds),
        Column("Share of the empirical peak, by other jobs", "share", text.percent),
        Column("Products", "products", text.count),
        Column(f"Within {text.percent(CLOSE)}", "within", text.count),
        Column("Median error", "median", text.percent, figure="median_absolute_error"),
        Column("that of the baseline", "baseline", text.percent, figure="median_absolute_error"),
    )
    return Table("Products alone, by job", columns, pd.DataFrame(rows), "products")


def _rows(rows: Sequence[ProductRow]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "job": text.clean(row.job, 120), "m": row.m, "n": row.n, "k": row.k, "mode": row.mode,
                "measured_s": seconds(row.time_s), "predicted_s": seconds(row.predicted_s), "error": row.error,
                "baseline_s": seconds(row.one_rate_s), "baseline_error": row.one_rate_error,
            }
            for row in rows
        ]
    )  # fmt: skip


def _figure(name: str, title: str, rows: pd.DataFrame) -> Figure:
    caption = f"On the line prediction and measurement agree; dotted: {text.percent(CLOSE)} above and below."
    dots = Line.of(rows, "measured_s", "predicted_s", "blue", "product", kind="dots")
    drawing = against([dots], Scale("measured seconds"), Scale("predicted seconds"), within=CLOSE)
    said = f"{text.plural(len(rows), 'product')} of {title}, their predicted times over their measured ones. {caption}"
    return Figure(f"Products alone on {title}", caption, drawing, rows, name, said)


def _products(name: str, title: str, rows: pd.DataFrame) -> Table:
    sizes = [Column(one, one, text.count) for one in "mnk"]
    columns = columns_of(
        Column("Job", "job", numeric=False), *sizes, Column("Mode", "mode", numeric=False),
        "measured_s", Column("Predicted", "predicted_s", text.seconds), "error baseline_s baseline_error",
    )  # fmt: skip
    note = "A product of [m, k] by [k, n], as PyTorch multiplies; the mode says how both factors lie in memory."
    return Table(f"Each product alone on {title}", columns, rows, name, note)
