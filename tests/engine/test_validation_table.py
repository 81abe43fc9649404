"""The text of a validation says of each part how far off it is, and how often intervals hold, of fitted rows, too."""

from typing import Any

from engine.validation.document import GridRow, JobRows, PublishedRow, Validation
from engine.validation.table import as_text


def run(grid: str, **other: Any) -> GridRow:
    """Predict a run of 2 s, half of which is exposed, for as long."""
    known: dict[str, Any] = {
        "name": grid, "grid": grid, "measured_s": 2.0, "measured_exposed_s": 1.0, "predicted_s": 2.0, "low_s": 1.8,
        "high_s": 2.2, "exposed_s": 1.0, "equations_s": 0.5, "agnostic_s": 0.5, "place": 1, "place_by_equations": 1,
        "place_agnostic": 1, "fitted": False,
    }  # fmt: skip
    return GridRow(**(known | other))


def test_a_job_has_the_errors_of_its_parts_with_their_range_and_pipelines_have_a_share_of_their_own() -> None:
    odd = {"predicted_s": 1.5, "exposed_s": 0.5, "low_s": 1.4, "high_s": 1.6}
    grids = (run("8x1x1x1"), run("1x8x1x1", fitted=True), run("1x1x1x1p8", **odd))
    job = JobRows(name="a", system="s", source="", model="m", samples="images", sequences=8, grids=grids, orders=())
    said = " ".join(as_text(Validation(jobs=(job,))).split())
    assert "a: m on s, 8 images," in said
    assert "of 2 runs that nothing was fitted to 1 within their intervals" in said
    assert "time 12.5% 1 of 2 -25% +0% compute 0.0% 2 of 2 +0% +0% exposed communication 25.0% 1 of 2 -50% +0%" in said
    assert "within their intervals, 1 of 1 of one stage and 0 of 1 pipelines" in said


def test_a_fitted_row_outside_of_its_interval_is_told() -> None:
    known: dict[str, Any] = {
        "source": "a paper",
        "system": "alps",
        "sequences": 8,
        "measured_s": 1.0,
        "grid": "1x1x1x8",
        "micro_batch": 1,
        "compute_s": 1.0,
        "exposed_s": {},
        "baseline_s": 1.0,
    }
    near = PublishedRow(model="near", devices=8, predicted_s=1.0, low_s=0.9, high_s=1.1, fitted=False, **known)
    far = PublishedRow(model="far", devices=6144, predicted_s=1.6, low_s=1.2, high_s=2.0, fitted=True, **known)
    told = "alps, fitted rows that lie outside of their own intervals: far on 6,144, +60.0%."
    assert as_text(Validation(published=(near, far))).count(told) == 1
    assert "fitted rows" not in as_text(Validation(published=(near,)))
