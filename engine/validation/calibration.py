"""A machine's own numbers from trainings on it: what kernels cost, and the four that are fitted."""

from engine.simulator.events import Attention, Product, Sweep
from engine.simulator.machine import Fitted, Machine
from engine.simulator.simulate import share_of
from engine.validation.document import MeasuredJob
from engine.validation.validate import refitted, traced_job


def kernel_s(machine: Machine, job: MeasuredJob) -> float:
    """The least that a kernel takes: what a rank of a tiny network computes in a step, by the kernels of its trace.

    Of the grid that was the fastest; a machine whose ranks take turns on cores tells how many do.
    """
    grid = min(job.time_s, key=lambda grid: job.time_s[grid])
    time_s = job.time_s[grid]
    traced = traced_job(job.model_copy(update={"time_s": {grid: time_s}}), machine).traced[grid]
    assert traced.whole is not None, "few layers are traced as a whole"
    kernels = sum(
        event.kernels if isinstance(event, Sweep) else 1
        for event in traced.whole
        if isinstance(event, Product | Attention | Sweep)
    )
    seen_s = time_s - sum(job.exposed_s[grid].values())
    return share_of(seen_s, time_s, machine.ranks_a_core) / kernels


def fitted(machine: Machine, job: MeasuredJob) -> Fitted:
    """The four numbers and the spread, from those grids of the job that are to tell."""
    return refitted(machine, traced_job(job, machine).timed(machine))
