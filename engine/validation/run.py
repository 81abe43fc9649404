"""All rows predicted, with the machines as their files have them or fitted anew."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

import systems
from engine.simulator.machine import Machine
from engine.validation.calibrate import Timed, rounded
from engine.validation.document import MeasuredRows, Validation, published
from engine.validation.effects import OF_EFFECTS, effects
from engine.validation.measured import row_of
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
    """Of a machine, in one number format: what its numbers were fitted to."""

    system: str
    machine: Machine
    rows: tuple[str, ...]

    def as_yaml(self) -> str:
        """As the system's file says it."""
        return yaml.safe_dump({"performance": self.numbers() | {"fitted_to": list(self.rows)}}, sort_keys=False)

    def numbers(self) -> dict[str, float]:
        """The four and the spread, as files have them."""
        return rounded(self.machine.fitted)


def run(measured: MeasuredRows, *, refit: bool = False) -> tuple[Validation, list[Fit]]:
    """The validation, and what was fitted anew."""
    fits: list[Fit] = []

    def of(machine: Machine, timed: Sequence[tuple[str, Sequence[Timed]]]) -> Machine:
        """Fitted to these rows, by what they are called, if that is asked for."""
        if not refit:
            return machine
        found = machine.with_fitted(refitted(machine, [row for _, rows in timed for row in rows]))
        fits.append(Fit(machine.name, found, tuple(name for name, _ in timed)))
        return found

    machines: dict[str, Machine] = {}
    rows, jobs = [], []
    by_system: dict[str, list[PublishedJob]] = defaultdict(list)
    for series in published():
        by_system[series.system] += published_jobs(series, _as_published(series.system))
    for name, found in by_system.items():
        start = _as_published(name)
        chosen = [(f"{job.model.name} on {job.devices}", [job.timed(start)]) for job in found if job.fitted]
        machines[name] = of(start, chosen)
        rows += published_rows(found, machines[name])
    of_machine: dict[tuple[str, Dtype], list[TracedJob]] = defaultdict(list)
    for job in measured.jobs:
        of_machine[job.system, job.precision].append(
            traced_job(job, _as_calibrated(measured, job.system, job.precision))
        )
    for (name, precision), traced in of_machine.items():
        start = _as_calibrated(measured, name, precision)
        machine = of(
            start, [row for t in traced for row in zip(_rows(t), ([one] for one in t.timed(start)), strict=True)]
        )
        jobs += [job_rows(job, machine) for job in traced]
    brought = effects(machines[OF_EFFECTS]) if OF_EFFECTS in machines else []
    return Validation(published=tuple(rows), jobs=tuple(jobs), effects=tuple(brought)), fits


def _rows(traced: TracedJob) -> list[str]:
    return [row_of(traced.job.model, grid) for grid in traced.job.fitted]


def _as_published(name: str) -> Machine:
    """By its file alone, whatever was measured there since."""
    return Machine.of(systems.load(name), "bf16", None)


def _as_calibrated(measured: MeasuredRows, name: str, precision: Dtype) -> Machine:
    """With as many ranks at once as there were."""
    return Machine.of(systems.load(name), precision, measured.machines.get(name))
