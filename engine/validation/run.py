"""Predict all published and measured rows, with the machines as their files have them or fitted anew."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import yaml

import systems
from engine.simulator.machine import MachineModel
from engine.validation import trainers
from engine.validation.calibrate import UNFITTED, Estimate, Observation, as_data, closest
from engine.validation.document import JobRows, PublishedRow, Validation
from engine.validation.effects import effects
from engine.validation.held_out import fitted_devices, published_series, spread, spreads
from engine.validation.measured import MeasuredRows, with_numbers
from engine.validation.products import predict_products
from engine.validation.validate import (
    PublishedJob,
    TracedJob,
    fit_anew,
    job_rows,
    published_errors,
    published_jobs,
    published_rows,
    published_steps,
    traced_job,
)
from systems import Dtype


@dataclass(frozen=True, slots=True)
class Fit:
    """Numbers of a machine, in one number format, with the spread of its errors."""

    machine: MachineModel
    rows: tuple[str, ...] = ()
    """Names of the rows to which it was fitted anew; none where it wasn't."""
    estimate: Estimate | None = None
    """How well these rows tell its numbers."""

    def as_yaml(self) -> str:
        """Write the fit as the system's file has it, and say which two numbers its rows tell apart the least."""
        said = f"# {closest(self.estimate)}\n" if self.estimate else ""
        return said + yaml.safe_dump({"performance": self.numbers() | {"fitted_to": list(self.rows)}}, sort_keys=False)

    def numbers(self) -> dict[str, object]:
        """Return the four numbers and the spread, as files have them, and how well the fit tells them."""
        return as_data(self.machine.fitted, self.estimate)


class Run(NamedTuple):
    """Validation with the numbers that its machines had."""

    found: Validation
    fits: list[Fit]
    """Fits of the published machines."""
    measured: list[MeasuredRows]
    """Rows of the campaigns, with the numbers of their machines."""


def run(measured: Sequence[MeasuredRows], *, refit: bool = False) -> Run:
    """Validate the model. measured: campaigns, each predicted with its own machines. refit: fit all numbers anew."""
    fits, rows = _published(refit=refit)
    campaigns = [_measured(one, refit=refit) for one in measured]
    found = Validation(
        published=tuple(rows),
        jobs=tuple(job for jobs, _ in campaigns for job in jobs),
        effects=tuple(effects({fit.machine.name: fit.machine for fit in fits})),
        products=tuple(one for rows in measured for device in rows.products for one in predict_products(device)),
        trainers=tuple(trainers.predict()),
    )
    return Run(found, fits, [known for _, known in campaigns])


def _published(*, refit: bool) -> tuple[list[Fit], list[PublishedRow]]:
    """Predict the published rows. The spread of a system is that of the others' errors."""
    every = published_series()
    by_system: dict[str, list[PublishedJob]] = defaultdict(list)
    for series in every:
        fitted_to = fitted_devices(series, every)
        by_system[series.system] += published_jobs(series, fitted_to, _as_published(series.system))
    found: dict[str, Fit] = {}
    for name, jobs in by_system.items():
        start = _as_published(name)
        found[name] = _fit(start, [job.observation(start) for job in jobs if job.fitted], refit=refit)
    steps = {name: published_steps(jobs, found[name].machine) for name, jobs in by_system.items()}
    spread_of = spreads({name: published_errors(some) for name, some in steps.items()}, UNFITTED.spread)
    rows = [row for name, some in steps.items() for row in published_rows(some, spread_of[name])]
    return [_with_spread(one, spread_of[name]) for name, one in found.items()], rows


def _measured(measured: MeasuredRows, *, refit: bool) -> tuple[list[JobRows], MeasuredRows]:
    """Predict the measured jobs, and give the rows with the numbers of their machines. The spread of a job is that of
    the errors in the machine's other jobs, that of the machine all of theirs.
    """
    rows: list[JobRows] = []
    by_machine: dict[tuple[str, Dtype], list[TracedJob]] = defaultdict(list)
    for job in measured.jobs:
        machine = _as_calibrated(measured, job.system, job.precision)
        by_machine[job.system, job.precision].append(traced_job(job, machine))
    for (name, precision), traced in by_machine.items():
        start = _as_calibrated(measured, name, precision)
        fit = _fit(start, [row for job in traced for row in job.observations(start)], refit=refit)
        steps = [job.steps(fit.machine) for job in traced]
        errors = {f"{number}": job.errors(some) for number, (job, some) in enumerate(zip(traced, steps, strict=True))}
        spread_of = spreads(errors, fit.machine.fitted.spread).values()
        if own := [error for some in errors.values() for error in some]:
            fit = _with_spread(fit, spread(own))
        if name in measured.machines:
            measured = with_numbers(measured, name, fit.numbers(), fit.rows)
        rows += [
            job_rows(found.job, some, fit.machine, width)
            for found, some, width in zip(traced, steps, spread_of, strict=True)
        ]
    return rows, measured


def _fit(machine: MachineModel, to: Sequence[Observation], *, refit: bool) -> Fit:
    if not (refit and to):
        return Fit(machine)
    found = fit_anew(machine, to)
    return Fit(machine.with_fitted(found.fitted), tuple(observation.name for observation in to), found)


def _with_spread(fit: Fit, width: float) -> Fit:
    return replace(fit, machine=fit.machine.with_fitted(replace(fit.machine.fitted, spread=width)))


def _as_published(name: str) -> MachineModel:
    """Make the machine by its file alone, whatever was measured there since."""
    return MachineModel.of(systems.load(name), "bf16", None)


def _as_calibrated(measured: MeasuredRows, name: str, precision: Dtype) -> MachineModel:
    """Make the machine as it had been calibrated when it was measured."""
    return MachineModel.of(systems.load(name), precision, measured.machines.get(name))
