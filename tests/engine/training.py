"""A few training steps of a small network, serially or on a grid, and the comparison of the two."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.comm.funnel import Comm
from engine.grid import SPLITTING_ROWS, Grid
from engine.layers.counter_random import BatchRows
from engine.layers.matmul import Kernels
from engine.models.architecture import Architecture
from engine.models.serial import SerialModel
from engine.overlap.flags import ALL, Overlap
from engine.overlap.schedule import OnSummed
from engine.overlap.tasks import ONE_BY_ONE, Direction, Known, StageTask, StepSchedule
from engine.parallel.initial import initialise_serial
from engine.parallel.model import ParallelModel
from engine.parallel.parallelize import parallelize
from engine.parallel.runner import Runner
from engine.parallel.serial_state import full_gradients, full_state_dict
from engine.pipeline.cut import cut_evenly
from engine.precision import Precision
from engine.tensor_mode import ALGORITHM_1, TensorMode

SEED = 7


class Written:
    """Written order: F0 F1 B0 B1."""

    def __init__(self, order: str) -> None:
        names = {direction.value[0].upper(): direction for direction in Direction}
        self._tasks = [StageTask(names[task[0]], int(task[1:])) for task in order.split()]
        self.passes = 1 + max(task.number for task in self._tasks)

    chunks, deferring = 1, False

    def check(self, stages: int, passes: int) -> None:
        assert passes == self.passes

    def order(self, stage: int, stages: int, passes: int) -> Known:
        assert passes == self.passes
        return Known(self._tasks)

    def live_passes(self, stage: int, stages: int, passes: int) -> tuple[int, int]:
        return passes, 0


@dataclass(frozen=True)
class Case:
    """Training by plain SGD at learning rate 1, because Adam hides a gradient off by a factor.

    batches: different ones, before they come again. kernels: by layer, as parallelize() takes them. checkpoint: blocks
    that are recomputed together, the first ones alone where recomputed says how many.
    """

    config: Architecture
    sequences: int = 8
    micro_batches: int = 1
    checkpoint: int = 0
    recomputed: int | None = None
    steps: int = 2
    precision: str = "fp64"
    learning_rate: float = 1.0
    overlap: Overlap = ALL
    batches: int = 1000
    kernels: tuple[tuple[str, Kernels], ...] = ()
    order: StepSchedule = ONE_BY_ONE
    mode: TensorMode = ALGORITHM_1


@dataclass
class Outcome:
    """losses: mean per token of each step. gradients: those of the first step; parameters: after the last."""

    losses: list[float]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


def build_serial(case: Case) -> SerialModel:
    dtype = Precision.parse(case.precision).master
    model = initialise_serial(case.config, SEED, dtype=dtype)
    model.recomputed_together, model.recomputed_blocks = case.checkpoint, case.recomputed
    return model


def batch_of_step(case: Case, step: int) -> dict[str, Tensor]:
    """Make different samples for every step and every row, as the task has them of random data."""
    task = case.config.task
    first = step % case.batches * case.sequences
    rows = np.arange(first, first + case.sequences)
    made = task.batch(task.data.synthetic().read(1000, rows), 1000, rows)
    return {name: torch.from_numpy(array) for name, array in made.items()}


def divisor_of(case: Case, batch: dict[str, Tensor]) -> float | Tensor:
    """Count the things of the global batch over which the loss is a mean."""
    valid = case.config.task.valid(batch)
    return valid.double() if isinstance(valid, Tensor) else valid


def train_serial(case: Case) -> Outcome:
    model = build_serial(case)
    losses: list[float] = []
    gradients: dict[str, Tensor] = {}
    for step in range(case.steps):
        model.zero_grad()
        batch = batch_of_step(case, step)
        rows = BatchRows(SEED, step, torch.arange(case.sequences))
        loss = model.loss(batch, rows, divisor=divisor_of(case, batch))
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            gradients = {n: p.grad.clone() for n, p in model.named_parameters()}  # type: ignore[union-attr]
        with torch.no_grad():
            for p in model.parameters():
                p -= case.learning_rate * p.grad  # type: ignore[operator]
    return Outcome(losses, gradients, {n: p.detach() for n, p in model.named_parameters()})


def start(case: Case, comm: Comm) -> ParallelModel:
    blocks = (case.recomputed or case.config.layers) if case.checkpoint else 0
    return parallelize(
        case.config,
        comm,
        precision=Precision.parse(case.precision),
        seed=SEED,
        overlap=case.overlap,
        checkpoint_every=case.checkpoint,
        checkpoint_blocks=case.recomputed,
        kernels=dict(case.kernels),
        mode=case.mode,
        cut=cut_evenly(case.config, comm.grid.stages, case.order.chunks, recomputed=blocks),
    )


def step_parallel(
    case: Case, model: ParallelModel, step: int, on_summed: OnSummed | None = None, runner: Runner | None = None
) -> float:
    """Make one step; return the mean loss over the whole batch. runner: of the model, to be looked at afterwards."""
    comm, grid = model.comm, model.comm.grid
    share = case.sequences // grid.batch_split
    first = grid.position(comm.coords, SPLITTING_ROWS) * share
    batch = batch_of_step(case, step)
    parts = torch.arange(first, first + share).chunk(case.micro_batches)
    micro_batches = [
        (BatchRows(SEED, step, rows), {name: tensor[rows] for name, tensor in batch.items()}) for rows in parts
    ]
    total = (runner or Runner(model, case.order)).run(micro_batches, divisor_of(case, batch))
    model.finish_step(on_summed)
    return model.sum_losses(total).item()


def train_parallel(
    case: Case, comm: Comm, around: Callable[[int], AbstractContextManager[None]] = nullcontext
) -> Outcome:
    """around: entered for each step."""
    model = start(case, comm)
    losses: list[float] = []
    gradients: dict[str, Tensor] = {}
    for step in range(case.steps):
        with around(step):
            losses.append(step_parallel(case, model, step))
        if step == 0:
            gradients = full_gradients(model)
        with torch.no_grad():
            for p in model.parameters():
                p -= case.learning_rate * p.grad  # type: ignore[operator]
    return Outcome(losses, gradients, full_state_dict(model))


def error(ours: Tensor, reference: Tensor) -> float:
    """Return the largest difference relative to the largest value; infinite where there is a NaN."""
    difference = (ours.double() - reference.double()).abs().max() / reference.double().abs().max()
    return float("inf") if difference.isnan() else difference.item()


def worst_error(ours: Outcome, reference: Outcome) -> float:
    """Return that over losses, and every gradient and parameter on its own. A missing one is an infinite error."""
    if ours.gradients.keys() != reference.gradients.keys() or ours.parameters.keys() != reference.parameters.keys():
        return float("inf")
    errors = [error(torch.tensor(ours.losses), torch.tensor(reference.losses))]
    for name in reference.gradients:
        errors.append(error(ours.gradients[name], reference.gradients[name]))
        errors.append(error(ours.parameters[name], reference.parameters[name]))
    return max(errors)


def grid_id(grid: Grid) -> str:
    return str(grid)
