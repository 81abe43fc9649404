"""Performance models that claims are judged by."""

from collections.abc import Mapping

from engine.grid import Grid
from engine.validation.document import JobRows, count_efficient
from reports.frames.reproduction.samples import Asked, Sample, Source, grouped, lead_of, of_counts, over_jobs, same_sort

BY_NODES, NODES_UNKNOWN = "place_by_equations", "place_agnostic"
"""Places in a validation of a grid by Eq. 1 to 7 with a bandwidth for each axis, and by one bandwidth for all."""
ORDERS = {"model that knows of nodes": BY_NODES, "model that doesn't": NODES_UNKNOWN}
"""The papers' names of performance models."""
Times = Mapping[str, float]
"""Seconds of a batch by grid, the fastest first."""


def efficient(top: int) -> Source:
    """Return the source of how many of a model's first grids are among as many that were measured the fastest."""

    def read(asked: Asked) -> Sample | None:
        for job in _validated(asked):
            places = _places(job, ORDERS.get(asked.number.what, BY_NODES))
            counts = [count_efficient(places, list(times), top) / top for times in _times(asked, job)]
            return of_counts(counts, f"{job.model}, {len(places)} grids")
        return None

    return read


def place_of_fastest(asked: Asked) -> Sample | None:
    """Return by how much further behind one model has the grid that was the fastest."""
    comparison = asked.target.comparison
    if comparison is None:
        return None
    for job in _validated(asked):
        ahead, behind = (_places(job, ORDERS[name]) for name in (comparison.ahead, comparison.behind))
        fastest = [next(iter(times)) for times in _times(asked, job)]
        ratios = over_jobs([behind[grid] / ahead[grid] for grid in fastest], f"{job.model}, {len(ahead)} grids")
        return lead_of(ratios) if ratios else None
    return None


def _validated(asked: Asked) -> list[JobRows]:
    """Return the jobs of the newest validation that answer, that with the most grids first."""
    validated = asked.evidence.frames.predictions.validation
    jobs = [job for job in (validated.result.jobs if validated else ()) if job.system == asked.machine and job.grids]
    mine = [job for job in jobs if not asked.home or asked.place.has(job.model, Grid.parse(job.grids[0].grid).size)]
    return sorted((job for job in mine if same_sort(asked.network, job.model)), key=lambda job: -len(job.grids))


def _places(job: JobRows, order: str) -> dict[str, float]:
    return {row.name: getattr(row, order) for row in job.grids}


def _times(asked: Asked, job: JobRows) -> list[Times]:
    """Return the times of all grids for each repeat that measured every one, else those of the validation."""
    names = {row.name for row in job.grids}
    rows = [row for row in asked.evidence.rows(asked.machine, "train") if row["study"] == "model_validation"]
    by_grid = {
        mine[0]["grid"]: mine for mine in grouped(rows, lambda row: row["grid"]) if mine[0]["model"] == job.model
    }
    repeats = min((len(by_grid.get(name, ())) for name in names), default=0)
    found = [{name: by_grid[name][repeat]["time_s"] for name in names} for repeat in range(repeats)]
    return [dict(sorted(one.items(), key=lambda pair: pair[1])) for one in found or [_measured(job)]]


def _measured(job: JobRows) -> dict[str, float]:
    return {row.name: row.measured_s for row in job.grids}
