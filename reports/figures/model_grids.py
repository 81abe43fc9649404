"""Measured grids of a job beside what the performance model says of them (axonn-sc24 V-B, Fig. 2)."""

from collections.abc import Sequence

import pandas as pd

from engine.result import metrics
from engine.validation.document import CLOSE, PLANNED, TOP, JobRows, judge_orders
from reports import text
from reports.columns import columns_of
from reports.frames.jobs import fields
from reports.frames.predictions import FITTED, PLACES, grid_rows
from reports.page import Block, Figure, Figures, Paragraph, Table
from reports.plots.canvas import Scale
from reports.plots.lines import Line, against, scatter
from reports.words import NOTES

TITLES = {
    "planned": "Order of a plan",
    "simulated": "Order by the simulation",
    "equations": "Order by Eq. 1 to 7",
    "agnostic": "Order without placement",
}
PARTS = {"error": "Time", "compute_error": "Compute", "exposed_error": "Exposed communication"}
"""Errors of predictions have these columns of grid_rows."""


def blocks(name: str, job: JobRows) -> list[Block]:
    if not job.grids:
        return [Paragraph("No grid of this job was measured.")]
    rows = grid_rows(job)
    samples = job.samples.removesuffix("s")
    first = Paragraph(
        f"{_runs(rows)} of {text.clean(job.model, 120)} with {text.plural(job.sequences, samples)} a batch on "
        f"{text.clean(job.system, 120)}, {text.clean(job.source)}. {_held(rows)}"
    )
    figures = (
        *(_rank(name, order, rows) for order in PLACES),
        _against(name, "time", "Time per batch", "measured_s", "predicted_s", rows, ("low_s", "high_s")),
        _against(name, "exposed", "Exposed communication", "measured_exposed_s", "exposed_s", rows),
    )
    return [first, *_errors(name, rows), Figures(figures), _orders(name, job), _grids(name, rows)]


def over_all(jobs: Sequence[JobRows]) -> list[Block]:
    """Say in how many cases of all jobs the intervals hold, and how good each order is; nothing without jobs."""
    rest = [rows[~rows["fitted"].astype(bool)] for rows in map(grid_rows, jobs)]
    count = sum(len(rows) for rows in rest)
    if not count:
        return []
    held = sum(int(rows["held"].sum()) for rows in rest)
    said = Paragraph(
        f"Of {text.plural(count, 'run')} that nothing was fitted to, {held:,} measured times lie in the predicted "
        f"interval, where nine in ten are meant to{_by_stages(pd.concat(rest))}. {NOTES['model_intervals']}"
    )
    proofs = judge_orders(job.orders for job in jobs)
    if not proofs:
        return [said]
    data = pd.DataFrame([{"order": TITLES[one.name], **one._asdict()} for one in proofs])
    note = f"Means over the jobs, the best order first: that whose first grids lose the least time. {PLANNED}"
    columns = columns_of("order lost right spearman", right=f"Is the fastest in, of {proofs[0].jobs} jobs")
    return [said, Table("Orders over all jobs", columns, data, "orders", note)]


def _by_stages(rest: pd.DataFrame) -> str:
    """Say how often the intervals of pipelines and of other runs hold, where there are pipelines."""
    is_piped = rest["stages"] > 1
    if not is_piped.any():
        return ""
    flat, piped = (
        f"{int(held.sum()):,} of {len(held):,}" for held in (rest.loc[~is_piped, "held"], rest.loc[is_piped, "held"])
    )
    return f": {flat} of one stage, and {piped} pipelines"


def _runs(rows: pd.DataFrame) -> str:
    grids = text.plural(rows["of_grid"].nunique(), "grid")
    return grids if rows["of_grid"].is_unique else f"{text.plural(len(rows), 'run')} on {grids}"


def _held(rows: pd.DataFrame) -> str:
    """Say how often the intervals hold of what nothing was fitted to."""
    rest = rows[~rows["fitted"]]
    if rest.empty:
        return "The model was fitted to all of them: they tell nothing of how well it predicts."
    return (
        f"Of the {text.plural(len(rest), 'run')} that the model was not fitted to, {int(rest['held'].sum()):,} have "
        "their measured time in the predicted interval."
    )


def _errors(name: str, rows: pd.DataFrame) -> list[Block]:
    """Say how far off the predictions are that nothing was fitted to, and of what parts; nothing without any."""
    rest = rows[~rows["fitted"]]
    parts = {what: rest[key].dropna() for key, what in PARTS.items()}
    data = pd.DataFrame(
        [
            {
                "what": what,
                "median": metrics.median_absolute_error(errors.tolist()),
                "runs": len(errors),
                "within": int((errors.abs() <= CLOSE).sum()),
                "low": errors.min(),
                "high": errors.max(),
            }
            for what, errors in parts.items()
            if not errors.empty
        ]
    )
    if data.empty:
        return []
    columns = columns_of(
        "what runs within median low high", within=f"Within {text.percent(CLOSE)}", median="Median absolute error"
    )
    note = f"Of runs that nothing was fitted to. {_why(rest)}"
    if (rest["stages"] > 1).any():
        note += " What a pipeline exposes has the time in which its stages are idle, too."
    return [Table("How far off the predictions are", columns, data, f"{name}-errors", note)]


def _why(rest: pd.DataFrame) -> str:
    """Say that no reason is known for errors of parts, and how often those of a run cancel in part."""
    known = rest.dropna(subset=["compute_error", "exposed_error"])
    far = known[known[["compute_error", "exposed_error"]].abs().max(axis=1) > CLOSE]
    if far.empty:
        return ""
    opposite = int((far["compute_error"] * far["exposed_error"] < 0).sum())
    return (
        f"In {len(far):,} of {len(known):,} compute, exposed communication or both are off by more than "
        f"{text.percent(CLOSE)}, in {opposite:,} of them in opposite directions, so that the time shows less "
        "of it. It isn't known why they are off."
    )


def _rank(name: str, order: str, rows: pd.DataFrame) -> Figure:
    """Draw measured time over the place in an order (axonn-sc24 Fig. 2)."""
    place = PLACES[order]
    fast = rows.index < TOP
    groups = [
        Line.of(part, place, "measured_s", colour, label, kind="dots")
        for part, colour, label in ((rows[~fast], "muted", "other grids"), (rows[fast], "green", "efficient"))
    ]
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
    name: str,
    suffix: str,
    title: str,
    measured: str,
    predicted: str,
    rows: pd.DataFrame,
    ends: tuple[str, str] | None = None,
) -> Figure:
    groups = []
    for fitted, colour, label in ((False, "blue", "predicted"), (True, "red", FITTED)):
        part = rows[rows["fitted"] == fitted]
        dots = Line.of(part, measured, predicted, colour, label, kind="open dots" if fitted else "dots")
        groups.append(dots.between(part, *ends) if ends else dots)
    caption = f"On the line prediction and measurement agree; dotted: {text.percent(CLOSE)} above and below."
    caption += " Whiskers: the predicted interval." if ends else ""
    caption += " Open marks: grids that the model was fitted to." if rows["fitted"].any() else ""
    drawing = against(groups, Scale("measured seconds"), Scale("predicted seconds"), within=CLOSE)
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
        "order efficient place_of_fastest spearman lost", efficient=f"Of its first {TOP}, among the {TOP} fastest"
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
