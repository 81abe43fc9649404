"""Measured grids of a job beside what the performance model says of them (axonn-sc24 V-B, Fig. 2)."""

from collections.abc import Sequence

import pandas as pd

from engine.result import metrics
from engine.validation.document import JobRows
from engine.validation.orders import PLANNED, TOP, proved
from engine.validation.product_rows import CLOSE
from reports import text
from reports.columns import columns_of
from reports.jobs import fields
from reports.page import Block, Column, Figure, Figures, Paragraph, Table
from reports.plots.canvas import Scale
from reports.plots.lines import Line, against, scatter
from reports.predictions import FITTED, PLACES, grid_rows

TITLES = {
    "planned": "Order of a plan",
    "simulated": "Order by the simulation",
    "equations": "Order by Eq. 1 to 7",
    "agnostic": "Order without placement",
}
LOST = Column(
    "Its first grid is slower than the fastest by", "lost", text.percent, missing="not known", figure="lost_by_order"
)
INTERVALS = (
    "The interval of a job comes from the errors in the other jobs of its machine, that of a published time from those "
    "on the other machines: nine in ten of Student's t, by their root mean square about 0."
)
SHARED = (
    " (where ranks share cores, what a collective takes of them counts as slower compute in the model, and as waiting "
    "by the clock, so that the parts differ more than their sum)"
)
EXPOSED_WITHIN = 0.2
"""Dotted lines stand at this error of exposed communication, and at CLOSE of a time."""


def blocks(name: str, job: JobRows) -> list[Block]:
    if not job.grids:
        return [Paragraph("No grid of this job was measured.")]
    rows = grid_rows(job)
    first = Paragraph(
        f"{text.plural(len(rows), 'grid')} of {text.clean(job.model, 120)} with "
        f"{text.plural(job.sequences, 'sequence')} a batch on {text.clean(job.system, 120)}, {text.clean(job.source)}. "
        f"{_errors(rows)}"
    )
    figures = (
        *(_rank(name, order, rows) for order in PLACES),
        _against(name, "time", "Time per batch", "measured_s", "predicted_s", rows, CLOSE, ("low_s", "high_s")),
        _against(name, "exposed", "Exposed communication", "measured_exposed_s", "exposed_s", rows, EXPOSED_WITHIN),
    )
    return [first, Figures(figures), _orders(name, job), _grids(name, rows)]


def over_all(jobs: Sequence[JobRows]) -> list[Block]:
    """Say in how many cases of all jobs the intervals hold, and how good each order is; nothing without jobs."""
    rest = [rows[~rows["fitted"].astype(bool)] for rows in map(grid_rows, jobs)]
    count = sum(len(rows) for rows in rest)
    if not count:
        return []
    held = sum(int(rows["held"].sum()) for rows in rest)
    said = Paragraph(
        f"Of {text.plural(count, 'grid')} that nothing was fitted to, {held:,} measured times lie in the predicted "
        f"interval, where nine in ten are meant to. {INTERVALS}"
    )
    proofs = proved(job.orders for job in jobs)
    if not proofs:
        return [said]
    data = pd.DataFrame([{"order": TITLES[one.name], **one._asdict()} for one in proofs])
    note = f"Means over the jobs, the best order first: that whose first grids lose the least time. {PLANNED}"
    columns = columns_of(
        "order", LOST, Column(f"Is the fastest in, of {proofs[0].jobs} jobs", "right", text.count), "spearman"
    )
    return [said, Table("Orders over all jobs", columns, data, "orders", note)]


def _errors(rows: pd.DataFrame) -> str:
    """Say how far off the predictions of grids are that nothing was fitted to, and how often the intervals hold."""
    rest = rows[~rows["fitted"]]
    times, exposed = rest["error"].dropna().tolist(), rest["exposed_error"].dropna().tolist()
    if not times:
        return "The model was fitted to all of them: they tell nothing of how well it predicts."
    said = (
        f"Of the {text.plural(len(rest), 'grid')} that the model was not fitted to, the median absolute error of the "
        f"predicted time is {text.percent(metrics.median_absolute_error(times))}"
    )
    if exposed:
        said += f", of exposed communication {text.percent(metrics.median_absolute_error(exposed))}"
    if computed := rest["compute_error"].dropna().tolist():
        off = metrics.median_absolute_error(computed)
        said += f", of compute {text.percent(off)}{SHARED if off > CLOSE else ''}"
    return f"{said}; {int(rest['held'].sum()):,} of {len(rest):,} measured times lie in the predicted interval."


def _rank(name: str, order: str, rows: pd.DataFrame) -> Figure:
    """Draw measured time over the place in an order (axonn-sc24 Fig. 2)."""
    place = PLACES[order]
    fast = rows.index < TOP
    groups = [
        Line.of(part, place, "measured_s", colour, label, kind="dots")
        for part, colour, label in (
            (rows[~fast], "muted", "other grids"), (rows[fast], "green", "efficient"),
        )
    ]  # fmt: skip
    title = TITLES[order]
    most, left = min(TOP, len(rows)), rows[place] <= TOP
    caption = (
        f"Measured time over the place in this order. Green: efficient, the {most} fastest measured; "
        f"{(left & fast).sum()} of them are among the {left.sum()} left of the dotted line, at the first {most} places."
    )
    x, y = Scale("place in this order", from_zero=True), Scale("measured seconds per batch", from_zero=True)
    drawing = scatter(groups, x, y, upright=most + 0.5)
    return Figure(title, caption, drawing, rows[["grid", place, "measured_s"]], f"{name}-{order}", caption)


def _against(
    name: str, suffix: str, title: str, measured: str, predicted: str, rows: pd.DataFrame, within: float,
    ends: tuple[str, str] | None = None,
) -> Figure:  # fmt: skip
    groups = []
    for fitted, colour, label in ((False, "blue", "predicted"), (True, "red", FITTED)):
        part = rows[rows["fitted"] == fitted]
        dots = Line.of(part, measured, predicted, colour, label, kind="open dots" if fitted else "dots")
        groups.append(dots.between(part, *ends) if ends else dots)
    caption = f"On the line prediction and measurement agree; dotted: {text.percent(within)} above and below."
    caption += " Whiskers: the predicted interval." if ends else ""
    caption += " Open marks: grids that the model was fitted to." if rows["fitted"].any() else ""
    drawing = against(groups, Scale("measured seconds"), Scale("predicted seconds"), within=within)
    keys = ["grid", measured, predicted, *(ends or ()), "fitted"]
    said = _described(rows, measured, predicted) + caption
    return Figure(f"{title}, predicted and measured", caption, drawing, rows[keys], f"{name}-{suffix}", said)


def _described(rows: pd.DataFrame, measured: str, predicted: str) -> str:
    known = rows.dropna(subset=[measured, predicted])
    said = [
        f"{row['grid']}: predicted {text.seconds(row[predicted])}, measured {text.seconds(row[measured])}"
        for _, row in known.iterrows()
    ]
    return ". ".join(said) + ". " if said else ""


def _orders(name: str, job: JobRows) -> Table:
    data = pd.DataFrame(
        [
            {"order": TITLES[order.name], **fields(order, text.number, "efficient place_of_fastest spearman lost")}
            for order in job.orders
        ],
        columns=["order", "efficient", "place_of_fastest", "spearman", "lost"],
    )
    columns = columns_of(
        "order",
        Column(f"Of its first {TOP}, among the {TOP} fastest", "efficient", text.count),
        "place_of_fastest spearman",
        LOST,
    )
    note = (
        "Against the measured times. A plan has the simulation's order, but the equations' where simulated times are "
        "too close to tell grids apart. Without placement every axis has the same bandwidth: what placement buys. What "
        "an order doesn't tell apart, as the equations do not the pipelines of a grid, counts by its mean."
    )
    return Table("How good the orders are", columns, data, f"{name}-orders", note)


def _grids(name: str, rows: pd.DataFrame) -> Table:
    note = (
        "The fastest measured first; times are of a batch, in brackets the predicted interval. By the equations: "
        "seconds of communication alone, by which these orders rank."
    )
    columns = columns_of(
        "grid measured_s predicted_s error measured_exposed_s exposed_s exposed_error equations_s agnostic_s "
        "place place_by_equations place_agnostic fitted_words",
        place="Place, simulated",
    )
    return Table("Grids, measured and predicted", columns, rows, f"{name}-grids", note)
