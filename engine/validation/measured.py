"""Measured rows: their files, and how they are made of results.

Results are those of suites/model_validation.py (every grid of a job, with its time and what was exposed, and grids that
took turns in one job), of suites/pipeline.py (every schedule of the same job's pipelines), and of benchmarks of matrix
products. No torch.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Literal

import yaml
from pydantic import ValidationError

from engine import yaml_text
from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import Axis, Grid
from engine.models.catalogue import lookup
from engine.overlap.flags import Overlap
from engine.result.schema import Result, read
from engine.result.schema.contest import GridSide, ScheduleSide
from engine.result.schema.step import GridText
from engine.schema import Record, first_problem
from engine.tensor_mode import ALGORITHM_1
from engine.training_record import Training, TrainingOptions
from engine.validation.document import MeasuredProducts
from engine.validation.products import measured_products
from systems import Measured, measured
from systems.store import as_data

FOLDER = Path(__file__).parent / "rows"
MEASURED = FOLDER / "measured"
STUDY, PIPELINES, IN_TURNS = "model_validation", "pipeline", "grids"
FEWEST = 2


class MeasuredRun(Record):
    """Measurement of a job on a grid; of several stages under a schedule."""

    grid: GridText
    schedule: str | None = None
    micro_batch: int | None = None
    """Sequences at once; None: all of a rank."""
    time_s: float
    exposed_s: float
    """Communication that compute waits for; of a pipeline idle time, too, as the mean of its stages."""

    @property
    def name(self) -> str:
        """Name of the run for a person, and within a job."""
        words = [self.grid if self.schedule is None else f"{self.grid} {self.schedule}"]
        return ", ".join([*words, *([f"micro-batch {self.micro_batch}"] if self.micro_batch else [])])


class MeasuredJob(Record):
    """Job of which suites/model_validation.py has measured every grid; the fastest is the first."""

    name: str
    system: str
    source: str
    model: str
    ranks: int
    sequences: int
    precision: Literal["bf16", "fp16", "fp32", "fp64"]
    overlap: str
    checkpoint_activations: bool
    fitted: tuple[GridText, ...]
    """Grids to which the machine is fitted."""
    time_s: dict[GridText, float]
    exposed_s: dict[GridText, dict[str, float]]
    """Communication that compute waits for, by axis."""
    pipelines: tuple[MeasuredRun, ...] = ()
    """Runs of suites/pipeline.py of the same job, the fastest first."""

    @property
    def runs(self) -> list[MeasuredRun]:
        """List all that was measured, the fastest first."""
        whole = [
            MeasuredRun(grid=grid, time_s=time_s, exposed_s=sum(self.exposed_s[grid].values()))
            for grid, time_s in self.time_s.items()
        ]
        return sorted([*whole, *self.pipelines], key=lambda run: run.time_s)

    @property
    def training(self) -> Training:
        """Training of the job."""
        options = TrainingOptions(
            precision=self.precision, checkpoint_activations=self.checkpoint_activations, tensor_mode="4d"
        )
        overlap = Overlap.parse(self.overlap)
        return Training.of(options, lookup(self.model), Batch(self.sequences), overlap=overlap)


class MeasuredRows(Record):
    """Rows of a campaign: jobs, the machines on which they were measured, as calibrated then, and products."""

    machines: dict[str, Measured] = {}
    jobs: tuple[MeasuredJob, ...] = ()
    products: tuple[MeasuredProducts, ...] = ()


def campaigns(folder: Path = MEASURED) -> list[MeasuredRows]:
    """Read the rows of each campaign, a file each, the oldest first. Raises UsageError for a file without such rows."""
    return [_read_rows(path) for path in sorted(folder.glob("*.yaml"))]


def _read_rows(path: Path) -> MeasuredRows:
    try:
        return MeasuredRows.model_validate(yaml_text.read(path))
    except ValidationError as error:
        raise UsageError(f"{path} are no valid rows: {first_problem(error)}") from None


def one_axis(grid: str) -> bool:
    """Say whether only one axis has more than one rank, and there is one stage; the machine is fitted to such grids."""
    parsed = Grid.parse(grid)
    return parsed.stages == 1 and sum(parsed[axis] > 1 for axis in Axis) == 1


def measured_in(folder: Path, study: str = STUDY) -> list[MeasuredJob]:
    """Read the jobs of a study from the results anywhere below a folder, the newest of each grid.

    Raises UsageError if there is none, or if a job whose grids are to be compared has fewer than FEWEST.
    """
    if not (jobs := _jobs(_results(folder), study)):
        raise _nothing_of(study, folder)
    return jobs


def _nothing_of(study: str, folder: Path, more: str = "") -> UsageError:
    return UsageError(
        f"No result of {study} lies below {folder}: name the output folder of reframe -c suites/{study}.py -r{more}."
    )


def _results(folder: Path) -> list[Result]:
    """Read all results below a folder, the newest last."""
    return sorted((read(path) for path in sorted(folder.rglob("result.json"))), key=lambda one: one.provenance.end)


def _jobs(results: Sequence[Result], study: str) -> list[MeasuredJob]:
    found: dict[tuple[str, str], dict[str, Result]] = defaultdict(dict)
    for result in results:
        if result.labels.get("study") == study and result.status == "ok" and result.grid and result.summary:
            found[result.labels["system"], result.labels["series"]][result.grid] = result
    turned: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        if study == STUDY and result.labels.get("study") == IN_TURNS and result.status == "ok":
            turned[result.labels["system"], result.labels["series"]].append(result)
    for (system, series), grids in found.items():
        if study == STUDY and len(grids) < FEWEST:
            raise UsageError(
                f"Of {series} on {system} only {len(grids)} of the grids was measured: run suites/{STUDY}.py for "
                f"{FEWEST} or more of them."
            )
    jobs = [_job(system, series, grids) for (system, series), grids in found.items()]
    if study != STUDY:
        return jobs
    jobs = [job.model_copy(update={"pipelines": _pipelines(job, results)}) for job in jobs]
    return [*jobs, *(_in_turns(*of, result) for of, result in turned.items())]


def _pipelines(job: MeasuredJob, results: Sequence[Result]) -> tuple[MeasuredRun, ...]:
    """List the pipelines of a job among the results, on a machine where nothing was made slower, the newest of each.

    results: the newest is the last. Of stages of several ranks these tell idle time, but not what tasks wait for, so
    that such pipelines are left out; `bench grids` has both.
    """
    found: dict[str, MeasuredRun] = {}
    for result in results:
        config = result.config
        if result.labels.get("study") != PIPELINES or result.status != "ok" or not result.grid or not result.model:
            continue
        same = (job.system, job.model, job.ranks, job.sequences, job.precision, job.checkpoint_activations)
        own = result.labels["system"], result.model.name, result.ranks, config["batch"]["sequences"]
        if (*own, config["precision"], config["checkpoint_activations"]) != same:
            continue
        if config.get("checkpoint_blocks") is not None:
            continue
        if config["slow_stage"] is not None or config["delays_s"]:
            continue
        if (grid := Grid.parse(result.grid)).size != grid.stages:
            continue
        for one in result.sides(ScheduleSide):
            time_s = median(second for seconds in one.rounds_s for second in seconds)
            run = MeasuredRun(
                grid=result.grid,
                schedule=one.name,
                micro_batch=config["batch"]["micro"],
                time_s=round(time_s, 5),
                exposed_s=round(one.idle_share * time_s, 5),
            )
            found[run.name] = run
    return tuple(sorted(found.values(), key=lambda run: run.time_s))


def _job(system: str, series: str, grids: dict[str, Result]) -> MeasuredJob:
    times = {grid: result.summary.median_time_s for grid, result in grids.items() if result.summary}
    fastest = sorted(times, key=lambda grid: times[grid])
    exposed = {
        grid: {axis.axis: axis.exposed_s for axis in result.breakdown.axes} if result.breakdown else {}
        for grid, result in grids.items()
    }
    return _made(
        system,
        series,
        next(iter(grids.values())),
        {grid: times[grid] for grid in fastest},
        exposed,
        fitted=tuple(grid for grid in fastest if one_axis(grid)),
    )


def _in_turns(system: str, series: str, results: Sequence[Result]) -> MeasuredJob:
    """Make the job of what `bench grids` compared, of each grid the median step in all of these results. A grid of one
    stage counts where a rank takes its share at once, as the rows of a single grid do.
    """
    listed: dict[tuple[str, str | None, int], list[GridSide]] = defaultdict(list)
    for one in (one for result in results for one in result.sides(GridSide) if one.tensor_mode == ALGORITHM_1.name):
        listed[one.grid, one.schedule, one.micro_batch].append(one)
    runs = [
        MeasuredRun(
            grid=grid,
            schedule=schedule,
            micro_batch=micro,
            time_s=round(median(second for one in turns for seconds in one.rounds_s for second in seconds), 5),
            exposed_s=round(median(sum(one.exposed_s.values()) for one in turns), 5),
        )
        for (grid, schedule, micro), turns in listed.items()
    ]
    runs.sort(key=lambda run: run.time_s)
    newest = results[-1]
    batch = Batch(newest.config["batch"]["sequences"])
    whole = [run for run in runs if not run.schedule and run.micro_batch == batch.at_once(Grid.parse(run.grid))]
    exposed = {one.grid: one.exposed_s for one in newest.sides(GridSide)}
    job = _made(system, series, newest, {run.grid: run.time_s for run in whole}, exposed)
    return job.model_copy(update={"pipelines": tuple(run for run in runs if run.schedule)})


def _made(
    system: str,
    series: str,
    some: Result,
    times: Mapping[str, float],
    exposed: Mapping[str, Mapping[str, float]],
    *,
    fitted: tuple[str, ...] = (),
) -> MeasuredJob:
    """Make the job that a result is of. times, exposed: of each grid, the fastest first."""
    assert some.model is not None
    if some.config.get("checkpoint_blocks") is not None:
        raise UsageError(
            f"The job {series} of {system} recomputes some blocks alone, which no row of measured times tells: leave "
            "its results out, or measure it with all or none."
        )
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
        fitted=fitted,
        time_s={grid: round(time_s, 5) for grid, time_s in times.items()},
        exposed_s={grid: {axis: round(s, 5) for axis, s in exposed[grid].items()} for grid in times},
    )


def rows_in(folder: Path, *, refit: bool = False) -> MeasuredRows:
    """Read the measured jobs below a folder, the calibrations of their machines as they are now, and GPUs' products.

    Marked as fitted are the grids to which the calibration was fitted; with refit those of one axis. Raises UsageError
    for a machine that isn't calibrated, and as measured_in does if there are no products either.
    """
    results = _results(folder)
    jobs, products = _jobs(results, STUDY), measured_products(results)
    if not (jobs or products):
        raise _nothing_of(STUDY, folder, ", or one of bench gemm and bench matmul on a GPU, as no processor's count")
    names = {job.system for job in jobs}
    found = {name: known for name in sorted(names) if (known := measured(name)) and known.performance}
    for name in names - set(found):
        raise UsageError(f"{name} isn't calibrated: run par4d calibrate --system {name} before its rows are judged.")
    if not refit:
        jobs = [job.model_copy(update={"fitted": _fitted_grids(job, found[job.system])}) for job in jobs]
    return MeasuredRows(machines=found, jobs=tuple(jobs), products=tuple(products))


def row_name(model: str, where: str | int) -> str:
    """Name a row as the files of systems do, by its model and its grid or number of devices."""
    return f"{model} on {where}"


def _fitted_grids(job: MeasuredJob, machine: Measured) -> tuple[str, ...]:
    rows = machine.performance.fitted_to if machine.performance else ()
    return tuple(grid for grid in job.fitted if row_name(job.model, grid) in rows)


def with_numbers(
    rows: MeasuredRows, system: str, numbers: Mapping[str, object], fitted_to: Sequence[str] = ()
) -> MeasuredRows:
    """Give a machine of the rows other numbers, fitted to the rows of these names; none if they were before."""
    machine = rows.machines[system]
    assert machine.performance is not None
    known = tuple(fitted_to) or machine.performance.fitted_to
    own = machine.performance.model_copy(update={**numbers, "fitted_to": known})
    machines = {**rows.machines, system: machine.model_copy(update={"performance": own})}
    return rows.model_copy(update={"machines": machines})


def as_yaml(rows: MeasuredRows) -> str:
    """Write a campaign's rows as the files in rows/measured have them."""
    machines = {name: as_data(machine) for name, machine in rows.machines.items()}
    jobs = {"machines": machines, "jobs": [job.model_dump(mode="json") for job in rows.jobs]}
    text = yaml.safe_dump(jobs, sort_keys=False, width=120, allow_unicode=True) if rows.jobs else ""
    if rows.products:
        products = [products.model_dump(mode="json") for products in rows.products]
        text += yaml.safe_dump({"products": products}, sort_keys=False, width=120, default_flow_style=None)
    return f"# Written by par4d plan --validate --measured DIR.\n{text}"
