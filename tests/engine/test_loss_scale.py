"""fp16 with a loss scale: which steps are skipped, on every grid as PyTorch's GradScaler does on the serial network."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from test_parity import BERT, LLAMA, SMALL
from torch import Tensor
from training import grid_id
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.checkpoint.manifest import Saved, read_manifest
from engine.comm.funnel import Comm
from engine.data import sampler
from engine.grid import Grid
from engine.layers.counter_random import BatchRows
from engine.measure.recorder import Recorder
from engine.models.architecture import Architecture
from engine.parallel.initial import initialise_serial
from engine.training.iterations import Diverged, describe, take_iteration
from engine.training.run import loss_scaling
from engine.training.trainer import LossScale, Step, Trainer
from engine.training_record import OptimConfig, PrecisionName, Training

STEPS, SEQUENCES = 10, 8
HUGE = LossScale(3 * 2.0**20, interval=3)
"""Gradients overflow at first, and some later. In each step the largest is 7 % or more away from the end of fp16, so
that it is on the same side of it where ranks sum it in parts.
"""
WITHIN = 2.0**-11
"""A rounding of fp16: losses are means in fp32 of many logits."""


def trainer_of(
    comm: Comm,
    model: Architecture = LLAMA,
    *,
    clip: float = 0.5,
    micro: int | None = None,
    precision: PrecisionName = "fp16",
    saved: Saved | None = None,
) -> Trainer:
    optim = OptimConfig(learning_rate=1e-3, clip=clip)
    training = Training(model, Batch(SEQUENCES, micro), precision=precision, optim=optim)
    trainer = Trainer(training, model.task.data.synthetic(), comm, comm.recorder or Recorder(), saved=saved)
    if saved is None and precision == "fp16":
        trainer.loss_scale = HUGE
    return trainer


def train(comm: Comm, clip: float) -> list[Step]:
    trainer = trainer_of(comm, clip=clip)
    return [trainer.step() for _ in range(STEPS)]


@cache
def by_pytorch(clip: float) -> list[Step]:
    """In fp16 throughout beside fp32 masters, with torch.amp.GradScaler and torch.optim.AdamW."""
    task, network = LLAMA.task, initialise_serial(LLAMA, 0, dtype=torch.float32)
    masters = [parameter.detach().clone() for parameter in network.parameters()]
    network.half()
    groups = [{"params": [master for master in masters if (master.ndim > 1) is matrix]} for matrix in (True, False)]
    optimizer = torch.optim.AdamW([groups[0] | {"weight_decay": 0.1}, groups[1] | {"weight_decay": 0.0}], lr=1e-3)
    for group in optimizer.param_groups:
        group["betas"] = (0.9, 0.95)
    scaler = torch.amp.GradScaler("cpu", init_scale=HUGE.value, growth_interval=HUGE.interval)
    steps = []
    for step in range(STEPS):
        rows = range(SEQUENCES)
        read = sampler.batch(task.data.synthetic(), task.batch, seed=0, step=step, batch_size=SEQUENCES, rows=rows)
        batch = {name: torch.from_numpy(array) for name, array in read.items()}
        logits: Tensor = network(*task.inputs(batch), rows=BatchRows(0, step, torch.arange(SEQUENCES)))
        loss = task.loss(network.criterion, logits.float(), batch, task.valid(batch))
        network.zero_grad()
        scale = scaler.get_scale()
        scaler.scale(loss).backward()
        for master, parameter in zip(masters, network.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(masters, clip or math.inf).item()
        scaler.step(optimizer)
        scaler.update()
        with torch.no_grad():
            for master, parameter in zip(masters, network.parameters(), strict=True):
                parameter.copy_(master)
        steps.append(Step(loss.item(), norm, 1e-3, 0.0, scale))
    return steps


@pytest.mark.parametrize(
    ("grid", "clip"),
    [
        (Grid(), 0.5),
        (Grid(), 0.0),
        (Grid(x=2), 0.5),
        (Grid(y=2), 0.5),
        (Grid(z=2), 0.5),
        (Grid(data=2), 0.0),
        (Grid(2, 1, 2, 1), 0.5),
        (Grid(1, 2, 1, 2), 0.5),
        (Grid(1, 1, 2, 2), 0.5),
    ],
    ids=str,
)
def test_every_grid_skips_the_steps_that_pytorchs_scaler_skips(grid: Grid, clip: float) -> None:
    wanted = by_pytorch(clip)
    assert [index for index, step in enumerate(wanted) if step.skipped] == [0, 1, 2, 6]
    for ours in run_ranks(grid, lambda comm: train(comm, clip)):
        assert [(step.loss_scale, step.skipped) for step in ours] == [(s.loss_scale, s.skipped) for s in wanted]
        assert [step.loss for step in ours] == pytest.approx([step.loss for step in wanted], rel=WITHIN)
        for one, other in zip(ours, wanted, strict=True):
            assert one.skipped or one.gradient_norm == pytest.approx(other.gradient_norm, rel=4 * WITHIN)


@pytest.mark.parametrize("model", [SMALL, BERT], ids=["gpt", "bert"])
def test_fp16_trains_nearly_as_fp32_does_once_its_scale_fits(model: Architecture) -> None:
    def losses(comm: Comm, precision: PrecisionName) -> list[float]:
        trainer = trainer_of(comm, model, micro=2, precision=precision)
        if precision == "fp16":
            trainer.loss_scale = LossScale()
        return [trainer.step().loss for _ in range(4)]

    half, single = (run_ranks(Grid(z=2), lambda comm, p=p: losses(comm, p))[0] for p in ("fp16", "fp32"))
    assert half == pytest.approx(single, rel=2 * WITHIN)


@pytest.mark.parametrize("grid", [Grid(x=2), Grid(z=2), Grid(data=2), Grid(2, 1, 1, 2)], ids=grid_id)
def test_an_overflow_on_one_rank_makes_every_rank_skip_the_step(grid: Grid) -> None:
    def work(comm: Comm) -> tuple[list[bool], list[bool], float]:
        trainer = trainer_of(comm, micro=2)
        trainer.loss_scale = LossScale(256.0)
        model, finish = trainer.model, trainer.model.finish_step
        last = comm.rank == grid.size - 1

        def planting() -> None:
            if last:  # of a replicated parameter, before it is summed over data
                model.flat_gradients[-1] = math.inf
            finish()
            if last:  # of its own shard, which no other rank of its replica has
                model.flat_gradients[0] = -math.inf

        skipped, changed = [], []
        for planted in (False, True, False):
            model.finish_step = planting if planted else finish  # type: ignore[method-assign]
            before = [tensor.clone() for tensor in held(trainer)]
            skipped.append(trainer.step().skipped)
            changed.append(any(not torch.equal(old, new) for old, new in zip(before, held(trainer), strict=True)))
        assert trainer.loss_scale is not None
        return skipped, changed, trainer.loss_scale.value

    for found in run_ranks(grid, work):
        assert found == ([False, True, False], [True, False, True], 128.0)


def held(trainer: Trainer) -> list[Tensor]:
    """Parameters, and what the optimizer keeps of them."""
    return [tensor for parameter, kept in trainer.optimizer.state.items() for tensor in (parameter, *kept.values())]


@pytest.mark.parametrize("resumed_on", [Grid(), Grid(y=2)], ids=grid_id)
def test_a_resumed_run_goes_on_with_its_scale(resumed_on: Grid, tmp_path: Path) -> None:
    def save(comm: Comm) -> list[Step]:
        trainer = trainer_of(comm)
        steps = [trainer.step() for _ in range(4)]
        trainer.save(tmp_path)
        return steps + [trainer.step() for _ in range(STEPS - 4)]

    def resume(comm: Comm) -> tuple[list[Step], LossScale | None]:
        trainer = trainer_of(comm, saved=Saved(folder, read_manifest(folder, LLAMA)))
        return [trainer.step() for _ in range(STEPS - 4)], trainer.loss_scale

    whole, folder = run_ranks(Grid(z=2), save)[0], tmp_path / "step-4"
    assert whole[0].skipped
    rest, scale = run_ranks(resumed_on, resume)[0]
    assert [(s.loss_scale, s.skipped) for s in rest] == [(s.loss_scale, s.skipped) for s in whole[4:]]
    assert [step.loss for step in rest] == pytest.approx([step.loss for step in whole[4:]], rel=WITHIN)
    assert scale is not None
    assert (scale.skipped, scale.interval) == (sum(step.skipped for step in whole), HUGE.interval)


def test_a_result_tells_what_was_skipped_and_a_run_that_no_scale_mends_ends() -> None:
    trainer = trainer_of(Comm(Grid()))
    iterations = [take_iteration(trainer, index, warmup=index == 0) for index in range(STEPS)]
    scaling = loss_scaling(trainer.loss_scale, iterations)
    wanted = by_pytorch(0.5)
    assert scaling is not None
    assert scaling.skipped_iterations == tuple(index for index, step in enumerate(wanted) if step.skipped)
    assert scaling.skipped == len(scaling.skipped_iterations)
    assert [one.loss_scale for one in iterations] == [step.loss_scale for step in wanted]
    assert [one.grad_norm is None for one in iterations] == [step.skipped for step in wanted]
    assert "gradient overflows, skipped  " in describe(iterations[0], STEPS, 1e9)
    trainer.loss_scale = LossScale(1.0)
    finish, model = trainer.model.finish_step, trainer.model

    def planting() -> None:
        finish()
        model.flat_gradients[0] = math.nan

    model.finish_step = planting  # type: ignore[method-assign]
    with pytest.raises(Diverged, match=r"fp16\D+1\b\D+11 \(iteration 10\)"):
        take_iteration(trainer, STEPS, warmup=False)
    assert loss_scaling(trainer_of(Comm(Grid()), precision="bf16").loss_scale, ()) is None


def test_the_scale_halves_at_an_overflow_and_doubles_after_as_many_good_steps_in_a_row() -> None:
    scale = LossScale(8.0, interval=2)
    found = []
    for taken in (True, False, True, True, True, True, True):
        scale = scale.after(taken=taken)
        found.append((scale.value, scale.good_steps, scale.skipped))
    assert found == [(8, 1, 0), (4, 0, 1), (4, 1, 1), (8, 0, 1), (8, 1, 1), (16, 0, 1), (16, 1, 1)]
    assert LossScale() == replace(scale, value=65536.0, good_steps=0, skipped=0, interval=2000)
