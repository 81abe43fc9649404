"""Predicted times, effects and products alone, beside what was published or measured and beside a plain baseline."""

from collections.abc import Sequence

import pandas as pd

from engine.result import metrics
from engine.validation.document import CLOSE, RULES, DeviceProducts, Effect, Validation, count_close
from reports import text
from reports.columns import columns_of
from reports.figures.scaling import DEVICES
from reports.frames.predictions import published_rows, seconds
from reports.page import Block, Column, Figure, Figures, Paragraph, Table
from reports.plots import lines as chart
from reports.plots.canvas import Scale
from reports.plots.lines import Line
from reports.words import NOTES

CLEARLY = 0.75
"""The smaller of two errors is clearly better if it is at most this part of the larger."""


def blocks(validation: Validation) -> list[Block]:
    """Return all that the page shows of published times; nothing where none was predicted."""
    rows = published_rows(validation)
    if rows.empty:
        return []
    said = [verdict(f"On {system}", part) + outside(part) for system, part in rows.groupby("system", sort=False)]
    if len(said) > 1:
        said.insert(0, verdict("In all", rows))
    groups = [part for _, part in rows.groupby(["system", "source"], sort=False)]
    titled = text.titled(groups, lambda part: f"{part['system'].iloc[0]}, {part['paper'].iloc[0]}")
    figures = [_figure(f"published-{name}", title, part) for name, title, part in titled]
    return [*map(Paragraph, (*said, NOTES["no_grids"])), Figures(tuple(figures)), _table(rows)]


def verdict(where: str, rows: pd.DataFrame) -> str:
    """Say who is closer to the published times of these rows, in words and numbers."""
    rest = rows[~rows["fitted"]].dropna(subset=["error", "baseline_error"])
    if rest.empty:
        return f"{where} the model was fitted to every row: they tell nothing of how well it predicts."
    ours, baseline = mean_errors(rest)
    held = int(rest["time_s_published"].between(rest["low_s"], rest["high_s"]).sum())
    return (
        f"{where}, over {text.plural(len(rest), 'row')} that nothing was fitted to, the mean absolute error is "
        f"{text.percent(ours)}, that of the baseline {text.percent(baseline)}: {winner(ours, baseline)}. "
        f"{held:,} of {len(rest):,} published times lie in the predicted interval."
    )


def outside(rows: pd.DataFrame) -> str:
    """Name the rows that lie outside of their intervals though the model was fitted to them, if there are any."""
    fitted = rows[rows["fitted"]].dropna(subset=["error"])
    off = fitted[~fitted["time_s_published"].between(fitted["low_s"], fitted["high_s"])]
    named = "; ".join(
        f"{row['model']} on {text.count(row['ranks'])}, {text.signed(row['error'])}" for _, row in off.iterrows()
    )
    return f" Fitted rows that lie outside of theirs: {named}." if named else ""


def mean_errors(rows: pd.DataFrame) -> tuple[float, float]:
    return metrics.mean_absolute_error(rows["error"].tolist()), metrics.mean_absolute_error(
        rows["baseline_error"].tolist()
    )


def winner(ours: float, baseline: float) -> str:
    """Say which of two mean absolute errors is smaller, and whether clearly."""
    if ours == baseline:
        return "neither is better"
    first, better, worse = ("the model", ours, baseline) if ours < baseline else ("the baseline", baseline, ours)
    return f"{first} is clearly better" if better <= CLEARLY * worse else f"{first} is better, but not clearly"


def lines(rows: pd.DataFrame) -> list[Line]:
    predicted = Line.of(rows, "ranks", "predicted_s", "blue", "predicted", kind="predicted")
    return [
        Line.of(rows, "ranks", "time_s_published", "red", "published", kind="published"),
        predicted.between(rows, "low_s", "high_s"),
        Line.of(rows[rows["fitted"]], "ranks", "predicted_s", "gold", kind="rings"),
    ]


def _figure(name: str, title: str, rows: pd.DataFrame) -> Figure:
    baseline = Line.of(rows, "ranks", "baseline_s", "muted", "baseline", kind="guide")
    caption = (
        f"Batches of {text.count(rows['sequences'].iloc[0])} sequences. Long dashes with diamonds: predicted, with the "
        "interval; short dashes with open marks: published; dotted: the baseline. Ringed: rows that the model was "
        f"fitted to. Source: {rows['source'].iloc[0]}."
    )
    said = [
        f"{row['model']} on {text.count(row['ranks'])}: predicted {text.seconds(row['predicted_s'])}, published "
        f"{text.seconds(row['time_s_published'])}"
        for _, row in rows.dropna(subset=["ranks", "predicted_s", "time_s_published"]).iterrows()
    ]
    drawing = chart.lines([baseline, *lines(rows)], DEVICES, Scale("seconds per batch", from_zero=True))
    keys = ["model", "ranks", "time_s_published", "predicted_s", "low_s", "high_s", "baseline_s", "fitted"]
    return Figure(title, caption, drawing, rows[keys], name, ". ".join(said) + ".")


def _table(rows: pd.DataFrame) -> Table:
    note = f"Times are of a batch. {NOTES['baseline']}"
    columns = columns_of(
        "system ranks model time_s_published predicted_s error baseline_s baseline_error fitted_words grid "
        "micro_batch compute_s exposed_s paper",
        grid="Grid of the planner",
        compute_s="Compute, predicted",
    )
    return Table("Predicted and published times", columns, rows, "against-published", note)


def effects(validation: Validation) -> list[Block]:
    """Say what changes bring, predicted beside published; nothing where none was predicted."""
    if not validation.effects:
        return []
    data = pd.DataFrame([_effect(one) for one in validation.effects])
    note = (
        "Per cent: the part of the time without it that is saved, if no other is named. Compute and communication are "
        "each judged alone here, as in the time of a batch their errors may cancel."
    )
    columns = columns_of("name setting predicted published lies source", name="Effect", source="Source")
    reasons: dict[str, list[str]] = {}
    for one in validation.effects:
        if abs(one.off) > CLOSE and one.reason:
            reasons.setdefault(text.clean(one.reason), []).append(text.clean(one.name))
    said = [
        Paragraph(f"Off by more than {text.percent(CLOSE)}: {'; '.join(dict.fromkeys(names))}. The reason: {reason}.")
        for reason, names in reasons.items()
    ]
    return [Table("Effects, predicted and published", columns, data, "effects", note), *said]


def _per_cent(value: float) -> str:
    return text.gain(value / 100)


def _effect(one: Effect) -> dict[str, str]:
    write = _per_cent if one.unit == "%" else text.seconds
    predicted, low, high = (text.number(value) for value in (one.predicted, one.published_low, one.published_high))
    lies = "within" if low <= predicted <= high else "below" if predicted < low else "above" if predicted > high else ""
    if lies in ("below", "above") and low > 0:
        lies += f" by {text.percent(abs(one.off))}"
    return {
        "name": text.clean(one.name),
        "setting": text.clean(one.setting),
        "predicted": write(predicted) if predicted == predicted else "",
        "published": " to ".join(write(end) for end in dict.fromkeys((low, high)) if end == end),
        "lies": lies if low < high or lies != "within" else "the same",
        "source": text.clean(one.source),
    }


def products(validation: Validation) -> list[Block]:
    """Return what each rule gives of products alone, and a picture a device; nothing without products."""
    found = validation.products
    if not found:
        return []
    drawn = {(one.device, one.precision): one for one in found}.values()
    titled = text.titled(drawn, lambda one: text.clean(f"{one.device}, {one.precision}", 80))
    shown = [(f"products-{name}", title, _product_rows(one)) for name, title, one in titled]
    figures = Figures(tuple(_products_figure(*each) for each in shown))
    said = [Paragraph(NOTES["products"]), *(Paragraph(products_verdict(one)) for one in found)]
    return [*said, _product_jobs(found), figures, *(_products_table(*each) for each in shown)]


def products_verdict(found: DeviceProducts) -> str:
    """Say how many of a device's products are predicted well by a rule, and how many at one rate."""
    within = [[count_close(rows, at_one_rate=one) for one in (False, True)] for rows in (found.rows, found.long)]
    errors = [row.error for row in found.rows], [row.one_rate_error for row in found.rows]
    launch = text.seconds(seconds(found.kernel_s))
    return (
        f"On {text.clean(found.device, 80)} in {found.precision} ({text.clean(found.source, 160)}), "
        f"{RULES[found.rule]} ({launch}): within {text.percent(CLOSE)} lie {within[0][0]:,} of "
        f"{text.plural(len(found.rows), 'product')}, by the baseline {within[0][1]:,}; of the {len(found.long):,} that "
        f"take more than twice as long as that, {within[1][0]:,} and {within[1][1]:,}. By the mean error "
        f"{winner(*map(metrics.mean_absolute_error, errors))}."
    )


def _product_jobs(found: Sequence[DeviceProducts]) -> Table:
    rows = [
        {
            "device": text.clean(one.device, 80),
            "rule": one.rule,
            "job": text.clean(job, 120),
            "launch": seconds(one.kernel_s),
            "products": len(of),
            "within": count_close(of),
            "share": text.number(share),
            "median": metrics.median_absolute_error([row.error for row in of]),
            "baseline": metrics.median_absolute_error([row.one_rate_error for row in of]),
        }
        for one in found
        for job, share in one.fitted.items()
        if (of := one.of(job))
    ]
    columns = columns_of(
        "device rule job launch",
        Column("Share of the empirical peak, by other jobs", "share", text.percent),
        "products within median baseline",
        within=f"Within {text.percent(CLOSE)}",
    )
    return Table("Products alone, by job", columns, pd.DataFrame(rows), "products")


def _product_rows(found: DeviceProducts) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "job": text.clean(row.job, 120),
                "m": row.m,
                "n": row.n,
                "k": row.k,
                "mode": row.mode,
                "measured_s": seconds(row.time_s),
                "predicted_s": seconds(row.predicted_s),
                "error": row.error,
                "baseline_s": seconds(row.one_rate_s),
                "baseline_error": row.one_rate_error,
            }
            for row in found.rows
        ]
    )


def _products_figure(name: str, title: str, rows: pd.DataFrame) -> Figure:
    caption = f"On the line prediction and measurement agree; dotted: {text.percent(CLOSE)} above and below."
    dots = Line.of(rows, "measured_s", "predicted_s", "blue", "product", kind="dots")
    drawing = chart.against([dots], Scale("measured seconds"), Scale("predicted seconds"), within=CLOSE)
    said = f"{text.plural(len(rows), 'product')} of {title}, their predicted times over their measured ones. {caption}"
    return Figure(f"Products alone on {title}", caption, drawing, rows, name, said)


def _products_table(name: str, title: str, rows: pd.DataFrame) -> Table:
    columns = columns_of(
        "job m n k mode measured_s", Column("Predicted", "predicted_s", text.seconds), "error baseline_s baseline_error"
    )
    note = "A product of [m, k] by [k, n], as PyTorch multiplies; the mode says how both factors lie in memory."
    return Table(f"Each product alone on {title}", columns, rows, f"{name}-all", note)
