"""Predict all published and measured rows, with the machines as their files have them or fitted anew."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

import systems
from engine.simulator.machine import MachineModel
from engine.validation.calibrate import Observation, rounded
from engine.validation.document import JobRows, MeasuredRows, PublishedRow, Validation, published
from engine.validation.effects import SYSTEM, effects
from engine.validation.validate import (
    PublishedJob,
    TracedJob,
    job_rows,
    published_jobs,
    published_rows,
    refitted,
    traced_job,
)
from systems import Dtype


@dataclass(frozen=True, slots=True)
class Fit:
    """A machine, in one number format, has been fitted to the rows of these names."""

    system: str
    machine: MachineModel
    rows: tuple[str, ...]

    def as_yaml(self) -> str:
        """Write the fit as the system's file has it."""
        return yaml.safe_dump({"performance": self.numbers() | {"fitted_to": list(self.rows)}}, sort_keys=False)

    def numbers(self) -> dict[str, float]:
        """Return the four numbers and the spread, rounded as files have them."""
        return rounded(self.machine.fitted)


def run(measured: MeasuredRows, *, refit: bool = False) -> tuple[Validation, list[Fit]]:
    """Validate the model; refit: fit the machines anew first, and return these fits too."""
    fits: list[Fit] = []

    def fitted(machine: MachineModel, to: Sequence[Observation]) -> MachineModel:
        if not refit:
            return machine
        found = machine.with_fitted(refitted(machine, to))
        fits.append(Fit(machine.name, found, tuple(observation.name for observation in to)))
        return found

    machines: dict[str, MachineModel] = {}
    rows: list[PublishedRow] = []
    by_system: dict[str, list[PublishedJob]] = defaultdict(list)
    for series in published():
        by_system[series.system] += published_jobs(series, _as_published(series.system))
    for name, found in by_system.items():
        start = _as_published(name)
        machines[name] = fitted(start, [job.observation(start) for job in found if job.fitted])
        rows += published_rows(found, machines[name])
    jobs: list[JobRows] = []
    by_machine: dict[tuple[str, Dtype], list[TracedJob]] = defaultdict(list)
    for job in measured.jobs:
        machine = _as_calibrated(measured, job.system, job.precision)
        by_machine[job.system, job.precision].append(traced_job(job, machine))
    for (name, precision), traced in by_machine.items():
        start = _as_calibrated(measured, name, precision)
        machine = fitted(start, [observation for job in traced for observation in job.observations(start)])
        jobs += [job_rows(job, machine) for job in traced]
    found_effects = effects(machines[SYSTEM]) if SYSTEM in machines else []
    return Validation(published=tuple(rows), jobs=tuple(jobs), effects=tuple(found_effects)), fits


def _as_published(name: str) -> MachineModel:
    """Make the machine by its file alone, whatever was measured there since."""
    return MachineModel.of(systems.load(name), "bf16", None)


def _as_calibrated(measured: MeasuredRows, name: str, precision: Dtype) -> MachineModel:
    """Make the machine as it had been calibrated when it was measured."""
    return MachineModel.of(systems.load(name), precision, measured.machines.get(name))
