"""Predict what was published and measured, and calibrate a machine by trainings on it."""

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log as ln
from statistics import mean
from typing import NamedTuple

from scipy.stats import rankdata

from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.catalogue import lookup
from engine.models.flops import hardware_flops
from engine.overlap.flags import Overlap
from engine.pipeline.registry import DEFAULT, ScheduleChoice, candidates
from engine.pipeline.staged import first_fastest
from engine.planning.grids import SearchSpace
from engine.planning.rank import best_first, rank
from engine.planning.workload import Candidate, Workload
from engine.simulator.bandwidth import agnostic
from engine.simulator.events import Compute, Sweep
from engine.simulator.machine import Fitted, MachineModel
from engine.simulator.simulate import Simulated, share_of
from engine.tracing.forecast import FINAL, Predictor, choose, find_fastest, trace_candidates
from engine.tracing.predict import Traced
from engine.training_record import Training, TrainingOptions
from engine.validation.calibrate import PRIORS, PRIORS_CHARGED, PRIORS_ON_CORES, UNFITTED, Estimate, Observation, fit
from engine.validation.document import GridRow, JobRows, OrderName, PublishedRow, judge_order
from engine.validation.held_out import PublishedSeries
from engine.validation.measured import MeasuredJob, MeasuredRun, campaigns, row_name

log = logging.getLogger(__name__)

AS_PUBLISHED = TrainingOptions(precision="bf16", checkpoint_activations=True, reduce_dtype="bf16", tensor_mode="4d")
"""Options of most papers' runs: Algorithm 1 in bf16, in which gradients are summed too, with activations recomputed."""


@dataclass(frozen=True, slots=True)
class PublishedJob:
    """Published time with the traces of all grids that a planner would try for it (choose_grids)."""

    series: PublishedSeries
    model: Architecture
    devices: int
    measured_s: float
    candidates: Sequence[Candidate]
    traced: Sequence[Predictor]
    fitted: bool
    """Whether the machine is fitted to this time."""

    @property
    def flops(self) -> int:
        """Count the flops of a batch, recomputation included."""
        return hardware_flops(self.model, self.series.sequences, recompute=True)

    def best(self, machine: MachineModel) -> tuple[Candidate, Simulated]:
        """Return the fastest grid on that machine, and its step."""
        candidate, _, step = find_fastest(self.candidates, self.traced, machine)
        return candidate, step

    def observation(self, machine: MachineModel) -> Observation:
        def predicted(fitted: Fitted) -> tuple[float, float]:
            step = self.best(machine.with_fitted(fitted))[1]
            return step.time_s, step.communication_s

        return Observation(predicted, self.measured_s, name=row_name(self.model.name, self.devices))


def published_workload(
    name: str,
    sequences: int,
    overlap: Overlap,
    machine: MachineModel,
    options: TrainingOptions = AS_PUBLISHED,
    schedule: str | None = None,
) -> Workload:
    """Make the workload of a published run. schedule: of its pipeline, if it has one."""
    pipeline = ScheduleChoice(schedule).options() if schedule else DEFAULT
    training = Training.of(options, lookup(name), Batch(sequences), overlap=overlap, pipeline=pipeline)
    return Workload(training, machine.device_memory)


def choose_grids(workload: Workload, devices: int, machine: MachineModel) -> list[Candidate]:
    """Choose the ten best grids by the papers' equations and the ten best as run. Raises UsageError if none fits."""
    model, sequences = workload.training.model, workload.training.batch.sequences
    grids = SearchSpace(model, sequences, exact=True).grids(devices, sequences)
    ranking = rank(workload, grids, machine.bandwidths, links_as_run=machine.links)
    found = choose(workload, ranking, machine.bandwidths.devices_per_node, FINAL)
    if not found:
        raise UsageError(f"No grid of {devices} devices of {machine.name} holds {model.name}.")
    return found


def published_jobs(series: PublishedSeries, fitted: Sequence[int], machine: MachineModel) -> Iterator[PublishedJob]:
    """Trace the jobs of a series. fitted: the numbers of devices to which the machine is fitted."""
    overlap = Overlap.parse(series.overlap)
    for name, times in series.batch_s.items():
        for devices, measured_s in times.items():
            log.info("%s on %d devices of %s", name, devices, series.system)
            workload = published_workload(name, series.sequences, overlap, machine)
            candidates = choose_grids(workload, devices, machine)
            traced = trace_candidates(workload, candidates, machine)
            yield PublishedJob(
                series, workload.training.model, devices, measured_s, candidates, traced, devices in fitted
            )


class PublishedStep(NamedTuple):
    """Prediction of a published job, on the fastest of the grids tried."""

    job: PublishedJob
    candidate: Candidate
    step: Simulated


def published_steps(jobs: Sequence[PublishedJob], machine: MachineModel) -> list[PublishedStep]:
    return [PublishedStep(job, *job.best(machine)) for job in jobs]


def published_errors(steps: Sequence[PublishedStep]) -> list[float]:
    """Return ln(predicted / measured) of all times to which the machine isn't fitted."""
    return [ln(step.time_s / job.measured_s) for job, _, step in steps if not job.fitted]


def published_rows(steps: Sequence[PublishedStep], spread: float) -> list[PublishedRow]:
    """Make the rows of one machine. Their baseline is the mean flop/s of a device in the jobs that it is fitted to."""
    baseline = mean(job.flops / job.devices / job.measured_s for job, _, _ in steps if job.fitted)
    rows = []
    for job, candidate, step in steps:
        rows.append(
            PublishedRow(
                source=job.series.source,
                system=job.series.system,
                model=job.model.name,
                devices=job.devices,
                sequences=job.series.sequences,
                measured_s=job.measured_s,
                grid=str(candidate.grid),
                micro_batch=candidate.micro,
                predicted_s=step.time_s,
                low_s=step.time_s / (1 + spread),
                high_s=step.time_s * (1 + spread),
                compute_s=step.compute_s,
                exposed_s=dict(step.exposed_s),
                baseline_s=job.flops / job.devices / baseline,
                fitted=job.fitted,
            )
        )
    return rows


@dataclass(frozen=True, slots=True)
class TracedJob:
    """Measured job with a trace of each of its runs, by name."""

    job: MeasuredJob
    traced: Mapping[str, Predictor]

    def observations(self, machine: MachineModel) -> list[Observation]:
        """List the grids that the machine is fitted to."""

        def of(grid: str) -> Observation:
            def predicted(fitted: Fitted) -> tuple[float, float]:
                step = self.traced[grid].on(machine.with_fitted(fitted))
                return step.time_s, step.communication_s

            exposed_s = sum(self.job.exposed_s[grid].values())
            return Observation(predicted, self.job.time_s[grid], exposed_s, row_name(self.job.model, grid))

        return [of(grid) for grid in self.job.fitted]

    def steps(self, machine: MachineModel) -> dict[str, Simulated]:
        """Predict each run, by its name."""
        return {name: traced.on(machine) for name, traced in self.traced.items()}

    def errors(self, steps: Mapping[str, Simulated]) -> list[float]:
        """Return ln(predicted / measured) of all times to which the machine isn't fitted."""
        rest = [run for run in self.job.runs if run.name not in self.job.fitted]
        return [ln(steps[run.name].time_s / run.time_s) for run in rest]


def traced_job(job: MeasuredJob, machine: MachineModel) -> TracedJob:
    log.info("%s: %s on %d ranks of %s", job.name, job.model, job.ranks, job.system)
    workload = Workload(job.training, machine.device_memory)
    candidates = [workload.at(grid, workload.choose_micro(grid)) for grid in map(Grid.parse, job.time_s)]
    found = trace_candidates(workload, candidates, machine)
    traced = {str(c.grid): traced for c, traced in zip(candidates, found, strict=True)}
    return TracedJob(job, traced | _traced_pipelines(job, workload, machine))


def _traced_pipelines(job: MeasuredJob, workload: Workload, machine: MachineModel) -> dict[str, Predictor]:
    """Trace each pipeline with the micro-batch of its run, or all of a rank's sequences at once, as the engine takes
    them where none is asked for. Raises UsageError for what its schedule doesn't allow.
    """
    found: dict[str, Predictor] = {}
    for schedule in dict.fromkeys(run.schedule for run in job.pipelines if run.schedule):
        runs = [run for run in job.pipelines if run.schedule == schedule]
        options = ScheduleChoice.parse(schedule).options()
        of = replace(workload, training=replace(workload.training, pipeline=options))
        candidates = []
        for run in runs:
            grid = Grid.parse(run.grid)
            candidates.append(of.at(grid, Batch(job.sequences, run.micro_batch).at_once(grid)))
        found |= {run.name: traced for run, traced in zip(runs, trace_candidates(of, candidates, machine), strict=True)}
    return found


def job_rows(job: MeasuredJob, steps: Mapping[str, Simulated], machine: MachineModel, spread: float) -> JobRows:
    """Put every run beside its predicted step, and judge the orders."""
    runs = job.runs
    papers = Workload(Training(lookup(job.model), Batch(job.sequences), precision=job.precision))
    grids = [Grid.parse(grid) for grid in dict.fromkeys(run.grid for run in runs)]
    equations, flat = (
        {str(candidate.grid): candidate.equations_s for candidate in rank(papers, grids, bandwidths).candidates}
        for bandwidths in (machine.bandwidths, agnostic(machine.bandwidths.inter))
    )
    by_equations, flat_place = ({grid: at for at, grid in enumerate(by)} for by in (equations, flat))
    names, of_grid = list(steps), {run.name: run.grid for run in runs}
    planned = planned_order(runs, steps, by_equations)
    orders: dict[OrderName, dict[str, float]] = {
        "planned": {name: float(place) for place, name in enumerate(planned, 1)},
        "simulated": _places(names, [steps[name].time_s for name in names]),
        "equations": _places(names, [by_equations[of_grid[name]] for name in names]),
        "agnostic": _places(names, [flat_place[of_grid[name]] for name in names]),
    }
    rows = [
        GridRow(
            name=run.name,
            grid=run.grid,
            measured_s=run.time_s,
            measured_exposed_s=run.exposed_s,
            predicted_s=steps[run.name].time_s,
            low_s=steps[run.name].time_s / (1 + spread),
            high_s=steps[run.name].time_s * (1 + spread),
            exposed_s=steps[run.name].communication_s,
            equations_s=equations[run.grid],
            agnostic_s=flat[run.grid],
            place=orders["simulated"][run.name],
            place_by_equations=orders["equations"][run.name],
            place_agnostic=orders["agnostic"][run.name],
            fitted=run.name in job.fitted,
        )
        for run in runs
    ]
    return JobRows(
        name=job.name,
        system=job.system,
        source=job.source,
        model=job.model,
        samples=papers.training.model.task.data.samples,
        sequences=job.sequences,
        grids=tuple(rows),
        orders=tuple(judge_order(name, by, {run.name: run.time_s for run in runs}) for name, by in orders.items()),
    )


def planned_order(runs: Sequence[MeasuredRun], steps: Mapping[str, Simulated], places: Mapping[str, int]) -> list[str]:
    """Order runs as a plan does. Of the schedules of a grid and micro-batch it has the one that AUTO takes; those that
    are faster by less than that asks for come behind it.
    """
    every = dict.fromkeys(choice.name for choice in candidates(2, 4, room=2))  # schedules in the order of preference
    preferred = [None, *every]
    schedules = {run.name: ScheduleChoice.parse(run.schedule).name if run.schedule else None for run in runs}
    listed = sorted(runs, key=lambda run: (preferred.index(schedules[run.name]), run.name))
    steps_of = defaultdict[tuple[str, int | None], dict[str, float]](dict)
    for run in listed:
        steps_of[run.grid, run.micro_batch][run.name] = steps[run.name].time_s
    taken_s = {key: times_s[first_fastest(times_s)] for key, times_s in steps_of.items()}
    times_s = [max(steps[run.name].time_s, taken_s[run.grid, run.micro_batch]) for run in listed]
    order = best_first(times_s, [None if run.schedule else places[run.grid] for run in listed])
    return [listed[at].name for at in order]


def _places(names: Sequence[str], by: Sequence[float]) -> dict[str, float]:
    """Give the place of each name in the order of these numbers; equal ones share the mean of their places."""
    return dict(zip(names, rankdata(by).tolist(), strict=True))


def fit_anew(machine: MachineModel, rows: Sequence[Observation]) -> Estimate:
    """Fit the machine's numbers anew to these rows. Raises UsageError without any."""
    if not rows:
        raise UsageError(f"Nothing was measured that {machine.name} can be fitted to: measure a grid of one axis.")
    log.info("fitting %s to %d rows", machine.name, len(rows))
    priors = PRIORS_ON_CORES if machine.ranks_per_core > 1 else PRIORS
    return fit(rows, PRIORS_CHARGED if machine.taken or machine.taken_within else priors)


def kernel_s(machine: MachineModel, job: MeasuredJob) -> float:
    """Estimate the least seconds of a kernel: a rank's compute in a step of a tiny network, over its kernels' number.

    The fastest grid's step is taken. Where ranks take turns on cores, a rank's share of the step counts.
    """
    grid = min(job.time_s, key=lambda grid: job.time_s[grid])
    time_s = job.time_s[grid]
    traced = traced_job(job.model_copy(update={"time_s": {grid: time_s}}), machine).traced[grid]
    assert isinstance(traced, Traced)
    assert traced.whole, "few layers are traced as a whole"
    kernels = sum(
        event.kernels if isinstance(event, Sweep) else 1 for event in traced.shown if isinstance(event, Compute)
    )
    seen_s = time_s - sum(job.exposed_s[grid].values())
    return share_of(seen_s, time_s, machine.ranks_per_core) / kernels


def calibrate(machine: MachineModel, jobs: Sequence[MeasuredJob]) -> Estimate:
    """Fit the four numbers to the grids of the jobs that are marked as fitted. Its spread is the largest of those that
    the committed rows show of calibrated machines (rows/measured): what a machine was fitted to can't tell it.
    """
    found = fit_anew(machine, [row for job in jobs for row in traced_job(job, machine).observations(machine)])
    machines = [machine for rows in campaigns() for machine in rows.machines.values()]
    shown = [machine.performance.spread for machine in machines if machine.performance]
    return replace(found, fitted=replace(found.fitted, spread=max(shown, default=UNFITTED.spread)))
