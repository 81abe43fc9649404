"""The text of a validation says of each part how far off it is, and how often intervals hold, of fitted rows, too."""

import re
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
    assert "a: m on s," in said
    assert " 8 images," in said
    assert re.search(r"\b2 runs\D+\b1 within", said)
    parts = [
        ("time", "12.5%", "1 of 2", "-25%", "+0%"),
        ("compute", "0.0%", "2 of 2", "+0%", "+0%"),
        ("exposed communication", "25.0%", "1 of 2", "-50%", "+0%"),
    ]
    assert " ".join(cell for part in parts for cell in part) in said
    assert re.search(r"\b1 of 1\D+\b0 ", said)
    assert " 0 of 1 pipelines" in said


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
    said = as_text(Validation(published=(near, far)))
    assert said.count("alps, fitted rows ") == 1
    assert said.count("far on 6,144, +60.0%.") == 1
    assert "fitted rows" not in as_text(Validation(published=(near,)))
