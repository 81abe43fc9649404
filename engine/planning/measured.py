"""Results of suites/model_validation.py as rows: every grid of a job, with its time and what was exposed."""

from collections import defaultdict
from pathlib import Path

import yaml

from engine.errors import UsageError
from engine.grid import Axis, Grid
from engine.planning.validation import MeasuredJob
from engine.result.schema import Result, read

STUDY = "model_validation"
FEWEST = 2


def one_axis(grid: str) -> bool:
    """Whether only one axis has more than one rank: the machine is fitted to these grids."""
    parsed = Grid.parse(grid)
    return sum(parsed[axis] > 1 for axis in Axis) == 1


def measured_in(folder: Path) -> list[MeasuredJob]:
    """The jobs whose results lie anywhere below a folder, the newest of each grid. Raises UsageError without any."""
    found: dict[tuple[str, str], dict[str, Result]] = defaultdict(dict)
    results = [read(path) for path in sorted(folder.rglob("result.json"))]
    for result in sorted(results, key=lambda result: result.provenance.end):
        if result.labels.get("study") == STUDY and result.status == "ok" and result.grid and result.summary:
            found[result.labels["system"], result.labels["series"]][result.grid] = result
    if not found:
        raise UsageError(
            f"No result of {STUDY} lies below {folder}: name the output folder of reframe -c suites/{STUDY}.py -r."
        )
    for (system, series), grids in found.items():
        if len(grids) < FEWEST:
            raise UsageError(
                f"Of {series} on {system} only {len(grids)} of the grids was measured: run suites/{STUDY}.py for "
                f"{FEWEST} or more of them."
            )
    return [_job(system, series, grids) for (system, series), grids in found.items()]


def _job(system: str, series: str, grids: dict[str, Result]) -> MeasuredJob:
    some = next(iter(grids.values()))
    assert some.model is not None
    times = {grid: result.summary.median_time_s for grid, result in grids.items() if result.summary}
    fastest = sorted(times, key=lambda grid: times[grid])
    exposed = {
        grid: {axis.axis: axis.exposed_s for axis in result.breakdown.axes} if result.breakdown else {}
        for grid, result in grids.items()
    }
    provenance = some.provenance
    return MeasuredJob(
        name=series,
        system=system,
        source=f"{', '.join(sorted(set(provenance.devices)))}, {provenance.end[:10]}, commit {provenance.git_commit}",
        model=some.model.name,
        ranks=some.ranks,
        sequences=some.config["batch"]["sequences"],
        precision=some.config["precision"],
        overlap=some.config["overlap"],
        checkpoint_activations=some.config["checkpoint_activations"],
        fitted=tuple(grid for grid in fastest if one_axis(grid)),
        time_s={grid: round(times[grid], 5) for grid in fastest},
        exposed_s={grid: {axis: round(s, 5) for axis, s in exposed[grid].items()} for grid in fastest},
    )


def as_yaml(jobs: list[MeasuredJob]) -> str:
    """What rows/measured.yaml is."""
    text = yaml.safe_dump([job.model_dump(mode="json") for job in jobs], sort_keys=False, width=120)
    return f"# Measured by suites/{STUDY}.py, written by par4d plan --validate --measured DIR --refit.\n{text}"
