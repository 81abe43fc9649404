"""What the model predicts for what was published and measured."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from engine.batch import Batch
from engine.errors import UsageError
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.catalogue import lookup
from engine.models.flops import hardware_flops
from engine.overlap.flags import Overlap
from engine.planning.costs import Costs
from engine.planning.grids import SearchSpace
from engine.planning.rank import Candidate, Workload, rank
from engine.simulator.bandwidth import Bandwidths, agnostic, papers_links
from engine.simulator.machine import Fitted, Machine
from engine.simulator.simulate import Simulated
from engine.tracing.forecast import FINAL, chosen, fastest, traces
from engine.tracing.predict import Traced
from engine.training_record import Training
from engine.validation import calibrate, document
from engine.validation.calibrate import Timed
from engine.validation.document import (
    GridRow,
    JobRows,
    MeasuredJob,
    PublishedRow,
    PublishedSeries,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PublishedJob:
    """One published row, and the grids that a planner would try for it, traced: the ten best by each order."""

    series: PublishedSeries
    model: Architecture
    devices: int
    measured_s: float
    candidates: Sequence[Candidate]
    traced: Sequence[Traced]

    @property
    def fitted(self) -> bool:
        """Whether the machine is fitted to it."""
        return self.devices in self.series.fitted

    @property
    def flops(self) -> int:
        """Of a batch, recomputation included."""
        return hardware_flops(self.model, self.series.sequences, recompute=True)

    def best(self, machine: Machine) -> tuple[Candidate, Simulated]:
        """The fastest grid on that machine, and its step."""
        candidate, _, step = fastest(self.candidates, self.traced, machine)
        return candidate, step

    def timed(self, machine: Machine) -> Timed:
        """As calibrate.fit takes it."""

        def predicted(fitted: Fitted) -> tuple[float, float]:
            step = self.best(machine.with_fitted(fitted))[1]
            return step.time_s, step.communication_s

        return Timed(predicted, self.measured_s)


def job_of(model: Architecture, sequences: int, overlap: Overlap, machine: Machine) -> Workload:
    """As published runs are: bf16, in which gradients are summed too, activations recomputed."""
    return Workload(Training(model, Batch(sequences), "bf16", "bf16", True, overlap), machine.device_memory)


def tried(job: Workload, devices: int, machine: Machine) -> list[Candidate]:
    """The ten best grids by the papers' equations, and the ten best by all that a run repeats."""
    model, sequences = job.training.model, job.training.batch.sequences
    grids = SearchSpace(model, sequences, exact=True).grids(devices, sequences)
    ranking = rank(job, grids, machine.bandwidths, links_as_run=machine.links)
    found = chosen(ranking, machine.bandwidths.devices_per_node, FINAL)
    if not found:
        raise UsageError(f"No grid of {devices} devices of {machine.name} holds {model.name}.")
    return found


def published_jobs(series: PublishedSeries, machine: Machine) -> Iterator[PublishedJob]:
    """Each row of a series."""
    overlap = Overlap.parse(series.overlap)
    for name, times in series.batch_s.items():
        for devices, measured_s in times.items():
            log.info("%s on %d devices of %s", name, devices, series.system)
            job = job_of(lookup(name), series.sequences, overlap, machine)
            candidates = tried(job, devices, machine)
            found = traces(job, candidates, machine)
            yield PublishedJob(series, job.training.model, devices, measured_s, candidates, found)


def published_rows(jobs: Sequence[PublishedJob], machine: Machine) -> list[PublishedRow]:
    """The rows of one machine, beside what it predicts and beside the same share of its peak for all."""
    shares = [job.flops / job.devices / job.measured_s for job in jobs if job.fitted]
    found = []
    for job in jobs:
        candidate, step = job.best(machine)
        found.append(
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
                low_s=step.low_s,
                high_s=step.high_s,
                compute_s=step.compute_s,
                exposed_s=dict(step.exposed_s),
                baseline_s=job.flops / job.devices / mean(shares),
                fitted=job.fitted,
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A measured job with the trace of each of its grids."""

    job: MeasuredJob
    traced: Mapping[str, Traced]

    def timed(self, machine: Machine) -> list[Timed]:
        """The grids that the machine is fitted to."""

        def of(grid: str) -> Timed:
            def predicted(fitted: Fitted) -> tuple[float, float]:
                step = self.traced[grid].on(machine.with_fitted(fitted))
                return step.time_s, step.communication_s

            return Timed(predicted, self.job.time_s[grid], sum(self.job.exposed_s[grid].values()))

        return [of(grid) for grid in self.job.fitted]


def traced_job(job: MeasuredJob, machine: Machine) -> TracedJob:
    """Trace every grid."""
    log.info("%s: %s on %d ranks of %s", job.name, job.model, job.ranks, job.system)
    planned = Workload(job.training, machine.device_memory)
    candidates = [Candidate(grid, *planned.settled(grid), {}, {}) for grid in map(Grid.parse, job.time_s)]
    found = traces(planned, candidates, machine)
    return TracedJob(job, {str(c.grid): traced for c, traced in zip(candidates, found, strict=True)})


def job_rows(found: TracedJob, machine: Machine) -> JobRows:
    """Every grid beside what is predicted of it, and how good the orders are."""
    job = found.job
    papers = Training(lookup(job.model), Batch(job.sequences), job.precision)
    costs = Costs(papers)
    flat = papers_links(agnostic(machine.bandwidths.inter))
    aware = papers_links(machine.bandwidths)
    steps = {grid: traced.on(machine) for grid, traced in found.traced.items()}
    equations = {grid: sum(costs.equations(g, aware(g)).values()) for grid in steps for g in [Grid.parse(grid)]}
    agnostics = {grid: sum(costs.equations(g, flat(g)).values()) for grid in steps for g in [Grid.parse(grid)]}

    def ranked(bandwidths: Bandwidths) -> dict[str, int]:
        order = rank(Workload(papers), [Grid.parse(grid) for grid in steps], bandwidths).candidates
        return {str(candidate.grid): place for place, candidate in enumerate(order, 1)}

    by = {
        "simulated": document.places({grid: step.time_s for grid, step in steps.items()}),
        "equations": ranked(machine.bandwidths),
        "agnostic": ranked(agnostic(machine.bandwidths.inter)),
    }
    fastest = sorted(job.time_s, key=lambda grid: job.time_s[grid])
    rows = [
        GridRow(
            grid=grid,
            measured_s=job.time_s[grid],
            measured_exposed_s=sum(job.exposed_s[grid].values()),
            predicted_s=steps[grid].time_s,
            low_s=steps[grid].low_s,
            high_s=steps[grid].high_s,
            exposed_s=steps[grid].communication_s,
            equations_s=equations[grid],
            agnostic_s=agnostics[grid],
            place=by["simulated"][grid],
            place_by_equations=by["equations"][grid],
            place_agnostic=by["agnostic"][grid],
            fitted=grid in job.fitted,
        )
        for grid in fastest
    ]
    orders = [document.order(name, sorted(places, key=lambda g: places[g]), fastest) for name, places in by.items()]  # type: ignore[arg-type]
    return JobRows(
        name=job.name,
        system=job.system,
        source=job.source,
        model=job.model,
        sequences=job.sequences,
        grids=tuple(rows),
        orders=tuple(orders),
    )


def refitted(machine: Machine, rows: Sequence[Timed]) -> Fitted:
    """The machine's numbers, fitted anew to these rows."""
    if not rows:
        raise UsageError(f"Nothing was measured that {machine.name} can be fitted to: measure a grid of one axis.")
    log.info("fitting %s to %d rows", machine.name, len(rows))
    known = calibrate.ON_CORES if machine.ranks_a_core > 1 else calibrate.USUAL
    return calibrate.fit(rows, calibrate.CHARGED if machine.taken or machine.taken_within else known)
