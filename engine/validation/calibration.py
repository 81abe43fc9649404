"""Calibrate a machine by trainings on it: what a kernel costs at least, and the four fitted numbers."""

from collections.abc import Sequence
from dataclasses import replace

from engine.simulator.events import Compute, Sweep
from engine.simulator.machine import MachineModel
from engine.simulator.simulate import share_of
from engine.validation.calibrate import UNFITTED, Estimate
from engine.validation.document import MeasuredJob, campaigns
from engine.validation.validate import refitted, traced_job


def kernel_s(machine: MachineModel, job: MeasuredJob) -> float:
    """Estimate the least seconds of a kernel: a rank's compute in a step of a tiny network, over its kernels' number.

    The fastest grid's step is taken. Where ranks take turns on cores, a rank's share of the step counts.
    """
    grid = min(job.time_s, key=lambda grid: job.time_s[grid])
    time_s = job.time_s[grid]
    traced = traced_job(job.model_copy(update={"time_s": {grid: time_s}}), machine).traced[grid]
    assert traced.whole is not None, "few layers are traced as a whole"
    kernels = sum(
        event.kernels if isinstance(event, Sweep) else 1 for event in traced.whole if isinstance(event, Compute)
    )
    seen_s = time_s - sum(job.exposed_s[grid].values())
    return share_of(seen_s, time_s, machine.ranks_a_core) / kernels


def fitted(machine: MachineModel, jobs: Sequence[MeasuredJob]) -> Estimate:
    """Fit the four numbers to the grids of the jobs that are marked as fitted. Its spread is the largest of those that
    the committed rows show of calibrated machines (rows/measured): what a machine was fitted to can't tell it.
    """
    found = refitted(machine, [row for job in jobs for row in traced_job(job, machine).observations(machine)])
    machines = [machine for rows in campaigns() for machine in rows.machines.values()]
    shown = [machine.performance.spread for machine in machines if machine.performance]
    return replace(found, fitted=replace(found.fitted, spread=max(shown, default=UNFITTED.spread)))
