"""Plans and validations as pandas frames. Numbers that are missing, or aren't finite, are NaN; missing texts are ""."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from engine.grid import Axis, Grid
from engine.planning.document import GridPlan, Row
from engine.result import metrics
from engine.tensor_mode import ALGORITHM_1
from engine.validation.document import JobRows, PublishedRow, Validation
from reports.derived import by_row
from reports.frames.jobs import fields
from reports.read.load import Planned, Validated
from reports.text import clean, number, positive

AXES = tuple(str(axis) for axis in Axis)
FITTED = "fitted"
LONGEST_S = 1e9


@dataclass(frozen=True, slots=True)
class Predictions:
    """The newest plan comes first; the validation is the newest, None where there is none."""

    plans: tuple[Planned, ...] = ()
    validation: Validated | None = None


def newest_first(plans: Sequence[Planned], validations: Sequence[Validated]) -> Predictions:
    ordered = sorted(sorted(plans, key=lambda one: one.source), key=lambda one: one.written, reverse=True)
    newest = max(sorted(validations, key=lambda one: one.source), key=lambda one: one.written, default=None)
    return Predictions(tuple(ordered), newest)


def seconds(value: float | None) -> float:
    """Return a time in a step, or NaN for one that no clock shows."""
    read = number(value)
    return read if 0 <= read < LONGEST_S else math.nan


def by_axis(by: Mapping[str, float] | Mapping[Axis, float] | None) -> dict[str, float]:
    """exposed_x to exposed_data, and exposed_s, their sum; NaN where there is none."""
    if by is None:
        return dict.fromkeys((*(f"exposed_{axis}" for axis in AXES), "exposed_s"), math.nan)
    known = {str(axis): seconds(value) for axis, value in by.items()}
    parts = {f"exposed_{axis}": known.get(axis, 0.0) for axis in AXES}
    return parts | {"exposed_s": number(sum(parts.values()))}


def plan_rows(plan: GridPlan) -> pd.DataFrame:
    """Make a row a grid of a plan, the best first; equations_x to equations_data are its seconds by axis."""
    return pd.DataFrame([_plan_row(plan, row) for row in plan.rows])


def _plan_row(plan: GridPlan, row: Row) -> dict[str, object]:
    low, high = row.interval_s or (None, None)
    predicted_s, exposed = seconds(row.time_s), by_axis(row.exposed_s)
    compute_s = seconds(row.compute_s) if row.compute_s is not None else predicted_s - exposed["exposed_s"]
    equations = {
        f"equations_{axis}": seconds(sum(cost.equations_s for cost in row.costs if cost.axis == axis)) for axis in AXES
    }
    return {
        "grid": row.grid,
        **fields(row, number, "place micro_batch recomputed_blocks"),
        "tensor_mode": "" if row.tensor_mode == ALGORITHM_1.name else clean(row.tensor_mode, 60),
        **fields(row, seconds, "equations_s as_run_s"),
        **fields(row, positive, "hfu mfu device_hours"),
        **fields(row.memory, positive, "of_device", memory_bytes="total"),
        "predicted_s": predicted_s,
        "low_s": seconds(low),
        "high_s": seconds(high),
        "compute_s": compute_s,
        **exposed,
        **equations,
        "solution_s": 86400 * positive(row.days),
        "traced": "" if row.time_s is None else "whole" if row.exact else "few layers",
    }


def grid_rows(job: JobRows) -> pd.DataFrame:
    """One row a measured grid of a job, the fastest first. error, exposed_error, compute_error: of predictions; held:
    whether the measured time lies in the interval; fitted_words: in words. grid: the run's name, of_grid its grid.
    """
    names = "measured_s measured_exposed_s predicted_s exposed_s low_s high_s equations_s agnostic_s"
    rows = [
        {
            "grid": row.name,
            "of_grid": row.grid,
            "stages": Grid.parse(row.grid).stages,
            "fitted": row.fitted,
            "fitted_words": FITTED if row.fitted else "",
        }
        | fields(row, seconds, names)
        | fields(row, number, f"compute_error {' '.join(PLACES.values())}")
        for row in job.grids
    ]
    own = ("grid", "of_grid", "stages", "fitted", "fitted_words", "compute_error")
    table = pd.DataFrame(rows, columns=[*own, *names.split(), *PLACES.values()])
    table = table.sort_values("measured_s", kind="stable", ignore_index=True)
    return table.assign(
        error=by_row(metrics.prediction_error, table["predicted_s"], table["measured_s"]),
        exposed_error=by_row(metrics.prediction_error, table["exposed_s"], table["measured_exposed_s"]),
        held=table["measured_s"].between(table["low_s"], table["high_s"]),
    )


PLACES = {"simulated": "place", "equations": "place_by_equations", "agnostic": "place_agnostic"}
"""Each order has a column with the grid's place in it."""


def published_rows(validation: Validation) -> pd.DataFrame:
    """Make one row a published time beside the predicted one and the baseline, with both errors, by system and devices.

    paper: the source up to its first colon.
    """
    rows = [_published_row(row) for row in validation.published]
    columns = [
        *("source", "paper", "system", "model", "ranks", "sequences", "time_s_published", "grid", "micro_batch"),
        *("predicted_s", "low_s", "high_s", "compute_s", "baseline_s", "fitted", "fitted_words"),
        *(f"exposed_{axis}" for axis in AXES),
        "exposed_s",
    ]
    table = pd.DataFrame(rows, columns=columns).sort_values(["system", "source", "ranks"], kind="stable")
    published_s = table["time_s_published"]
    return table.assign(
        error=by_row(metrics.prediction_error, table["predicted_s"], published_s),
        baseline_error=by_row(metrics.prediction_error, table["baseline_s"], published_s),
    ).reset_index(drop=True)


def _published_row(row: PublishedRow) -> dict[str, object]:
    return {
        "source": clean(row.source),
        "paper": clean(row.source.partition(":")[0], 60),
        "system": clean(row.system, 120),
        "model": clean(row.model, 120),
        "grid": row.grid,
        **fields(row, number, "sequences micro_batch", ranks="devices"),
        **fields(row, seconds, "predicted_s low_s high_s compute_s baseline_s", time_s_published="measured_s"),
        "fitted": row.fitted,
        "fitted_words": FITTED if row.fitted else "",
        **by_axis(row.exposed_s),
    }
