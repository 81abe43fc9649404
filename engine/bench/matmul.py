"""The matrix products of one rank of any job, in every mode: the tuner's table without the training.

One device stands for one rank of the grid. Under a launcher all ranks time the same products at once, as they would
train: processors and power are shared.
"""

from dataclasses import dataclass
from pathlib import Path

from engine.bench.at_once import LOST, first_line, together
from engine.bench.record import Begun
from engine.comm.launch import Launch, choose_device
from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.planning.record import recorded
from engine.precision import Precision
from engine.result.schema import Result
from engine.timeouts import Timeouts
from engine.tuning.shapes import Job, products
from engine.tuning.tune import time_again, tune


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


def run_matmul(
    launch: Launch, asked: Asked, device: str, timeouts: Timeouts, labels: dict[str, str], out: Path
) -> Result:
    """Time the products and, on rank 0, write result.json. Raises UsageError if the grid doesn't divide the model."""
    asked.model.check(asked.grid)
    target = choose_device(device, launch.local_rank)
    precision = Precision.named(asked.precision)
    job = Job(asked.grid, asked.sequences, precision, target, asked.micro_batches, asked.recompute)
    found = products(asked.model, job)
    config = {
        "model": asked.model.options,
        "grid": str(asked.grid),
        "batch": {"micro": asked.sequences, "micro_batches": asked.micro_batches},
        "checkpoint_activations": asked.recompute,
        "twice": asked.twice,
    }
    begun = Begun("matmul", launch, target, config=config, dtype=asked.precision, labels=labels, out=out)
    tuning, reason = None, "No product could be timed: the memory has no room for its operands."
    try:
        with together(launch, target, timeouts, begun) as comm:
            _, tuning = tune(found, asked.precision, comm, force=True)
            if asked.twice:
                tuning = time_again(tuning, found, asked.precision, comm)
    except LOST as error:
        reason = f"Timing the products failed: {first_line(error)}."
    timed = tuning is not None and any(shape.times for shape in tuning.shapes)
    return begun.end(
        None if timed else reason,
        grid=str(asked.grid),
        model=recorded(asked.model, asked.grid),
        tuning=tuning,
    )
