"""All rows predicted, with the machines as their files have them or fitted anew."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict

import yaml

from engine.planning.machine import Fitted, Machine
from engine.planning.validation import MeasuredJob, Validation, published
from engine.tracing.effects import OF_EFFECTS, effects
from engine.tracing.validate import (
    PublishedJob,
    TracedJob,
    job_rows,
    machine_of,
    published_jobs,
    published_rows,
    refitted,
    traced_job,
)


def run(measured: Sequence[MeasuredJob], *, refit: bool = False) -> tuple[Validation, dict[str, str]]:
    """The validation; and, of each machine that was fitted anew, what its file says of that, as YAML."""
    fits: dict[str, str] = {}
    machines: dict[str, Machine] = {}
    rows, jobs = [], []
    by_system: dict[str, list[PublishedJob]] = defaultdict(list)
    for series in published():
        by_system[series.system] += published_jobs(series, machine_of(series.system, "bf16"))
    for name, found in by_system.items():
        machine = machine_of(name, "bf16")
        if refit:
            chosen = [job for job in found if job.fitted]
            machine = machine.with_fitted(refitted(machine, [job.timed(machine) for job in chosen]))
            fits[name] = _section(machine.fitted, [f"{job.model.name} on {job.devices}" for job in chosen])
        machines[name] = machine
        rows += published_rows(found, machine)
    of_machine: dict[tuple[str, str], list[TracedJob]] = defaultdict(list)
    for job in measured:
        of_machine[job.system, job.precision].append(traced_job(job, machine_of(job.system, job.precision)))
    for (name, precision), traced in of_machine.items():
        machine = machine_of(name, precision)
        if refit:
            chosen_rows = [row for job in traced for row in job.timed(machine)]
            machine = machine.with_fitted(refitted(machine, chosen_rows))
            fits[name] = _section(machine.fitted, [f"{t.job.name}: {', '.join(t.job.fitted)}" for t in traced])
        jobs += [job_rows(job, machine) for job in traced]
    brought = effects(machines[OF_EFFECTS]) if OF_EFFECTS in machines else []
    return Validation(published=tuple(rows), jobs=tuple(jobs), effects=tuple(brought)), fits


def _section(fitted: Fitted, rows: list[str]) -> str:
    numbers = {name: float(f"{number:.3g}") for name, number in asdict(fitted).items()}
    return yaml.safe_dump({"performance": numbers | {"fitted_to": rows}}, sort_keys=False)
