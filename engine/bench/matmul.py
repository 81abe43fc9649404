"""The matrix products of one rank of any job, in every mode: the tuner's table without the training.

One device stands for one rank of the grid. Under a launcher all ranks time the same products at once, as they would
train: processors and power are shared.
"""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from engine.bench.at_once import LOST, first_line
from engine.comm.funnel import Comm
from engine.comm.launch import Launch, choose_device, init_process_group
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.planning.record import recorded
from engine.precision import Precision
from engine.result import provenance
from engine.result.schema import Result, write
from engine.tuning.shapes import Job, products
from engine.tuning.tune import time_again, tune

COLLECTIVE_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Of which rank of which job. sequences: of a micro-batch, and micro_batches: of a step."""

    model: Architecture
    grid: Grid
    sequences: int
    micro_batches: int
    precision: str
    recompute: bool
    twice: bool


def run_matmul(launch: Launch, asked: Asked, device: str, labels: dict[str, str], out: Path) -> Result:
    """Time the products and, on rank 0, write result.json. Raises UsageError if the grid doesn't divide the model."""
    asked.model.check(asked.grid)
    target, start = choose_device(device, launch.local_rank), provenance.now()
    precision = Precision.named(asked.precision)
    job = Job(asked.grid, asked.sequences, precision, target, asked.micro_batches, asked.recompute)
    found = products(asked.model, job)
    tuning, reason = None, "No product could be timed: the memory has no room for its operands."
    try:
        init_process_group(launch, target, COLLECTIVE_TIMEOUT)
        comm = Comm(Grid(data=launch.world_size), timeout=COLLECTIVE_TIMEOUT, device=target)
        _, tuning = tune(found, asked.precision, comm, force=True)
        if asked.twice:
            tuning = time_again(tuning, found, asked.precision, comm)
        comm.barrier()
        dist.destroy_process_group()
    except LOST as error:
        reason = f"Timing the products failed: {first_line(error)}."
    timed = tuning is not None and any(shape.times for shape in tuning.shapes)
    result = Result(
        kind="matmul",
        status="ok" if timed else "failed",
        reason=None if timed else reason,
        labels=labels,
        config={
            "model": asked.model.options,
            "grid": str(asked.grid),
            "batch": {"micro": asked.sequences, "micro_batches": asked.micro_batches},
            "checkpoint_activations": asked.recompute,
            "twice": asked.twice,
            "device": target.type,
            "threads": torch.get_num_threads(),
        },
        ranks=launch.world_size,
        grid=str(asked.grid),
        model=recorded(asked.model, asked.grid),
        dtype=asked.precision,
        tuning=tuning,
        provenance=provenance.collect(
            start=start,
            launcher=launch.launcher,
            devices=[provenance.device_name(target)],
            clocks=provenance.own_clock(target) if timed else (),
        ),
    )
    if launch.rank == 0:
        write(result, out)
    return result
