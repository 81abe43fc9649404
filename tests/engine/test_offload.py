"""With its matrices' fp32 weights and moments on the host a run is, to the last bit, the run that has them here."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from test_loss_scale import HUGE
from test_parity import BERT, LLAMA, SMALL
from torch import Tensor
from torch import distributed as dist
from training import grid_id
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.checkpoint.manifest import Saved, read_manifest
from engine.cli.main import main
from engine.comm.funnel import Comm
from engine.grid import Grid
from engine.measure.recorder import Recorder
from engine.models.choice import ModelChoice
from engine.overlap.flags import ALL
from engine.parallel.serial_state import full_state_dict
from engine.pipeline.registry import PipelineOptions
from engine.precision import DTYPES
from engine.training.checks import checked
from engine.training.config import TrainConfig
from engine.training.offload import Buckets
from engine.training.optim import AdamW
from engine.training.trainer import LossScale, Trainer
from engine.training_record import OptimConfig, PrecisionName, Training

BUCKET, STEPS = 512, 3
CASE = Training(
    SMALL, Batch(8, 2), precision="bf16", overlap=replace(ALL, bucket_bytes=4096), optim=OptimConfig(clip=0)
)
"""Overlap by which each bucket of gradients is stepped as soon as it is summed."""


class Outcome(NamedTuple):
    """steps: what is told of each, NaN being NaN. kept: what a rank keeps of each parameter."""

    steps: list[str]
    kept: list[Tensor]
    weights: dict[str, Tensor]


def trainer_of(training: Training, comm: Comm, saved: Saved | None = None) -> Trainer:
    trainer = Trainer(
        training,
        training.model.task.data.synthetic(),
        comm,
        comm.recorder or Recorder(),
        saved=saved,
        optimizer=partial(AdamW, bucket=BUCKET),
    )
    if training.precision == "fp16" and saved is None:
        trainer.loss_scale = HUGE
    return trainer


def outcome(trainer: Trainer, steps: int = STEPS) -> Outcome:
    taken = [trainer.step() for _ in range(steps)]
    kept = [tensor for parameter, state in trainer.optimizer.state.items() for tensor in (parameter, *state.values())]
    steps_told = [f"{step.loss} {step.gradient_norm} {'skipped' if step.skipped else ''}" for step in taken]
    return Outcome(steps_told, [tensor.detach().clone() for tensor in kept], full_state_dict(trainer.model))


def train(training: Training, grid: Grid, steps: int) -> list[Outcome]:
    return run_ranks(grid, lambda comm: outcome(trainer_of(training, comm), steps))


def same(one: Outcome, other: Outcome) -> bool:
    weights = all(torch.equal(weight, other.weights[name]) for name, weight in one.weights.items())
    kept = all(torch.equal(mine, its) for mine, its in zip(one.kept, other.kept, strict=True))
    return one.steps == other.steps and kept and weights


def check(training: Training, grid: Grid, steps: int = STEPS) -> list[Outcome]:
    found = train(replace(training, offload=True), grid, steps)
    assert all(map(same, found, train(training, grid, steps)))
    return found


GRIDS = [Grid(), Grid(x=2), Grid(y=2), Grid(z=2), Grid(data=2), Grid(2, 1, 2), Grid(1, 2, 1, 2), Grid(1, 1, 2, 2)]


@pytest.mark.parametrize("grid", GRIDS, ids=grid_id)
def test_on_every_kind_of_grid_it_is_the_same_training(grid: Grid) -> None:
    check(CASE, grid)


@pytest.mark.parametrize("grid", [Grid(x=2), Grid(z=2)], ids=grid_id)
@pytest.mark.parametrize("model", [LLAMA, BERT], ids=["llama", "bert"])
def test_so_it_is_with_gradients_clipped_and_blocks_recomputed(model: object, grid: Grid) -> None:
    check(replace(CASE, model=model, checkpoint_every=1, optim=OptimConfig(clip=0.5)), grid)  # type: ignore[arg-type]


@pytest.mark.parametrize("schedule", ["1f1b", "zero-bubble"])
@pytest.mark.parametrize("grid", [Grid(pipe=2), Grid(z=2, pipe=2), Grid(data=2, pipe=2)], ids=grid_id)
def test_so_it_is_in_stages(grid: Grid, schedule: str) -> None:
    check(replace(CASE, model=replace(SMALL, tied=True), pipeline=PipelineOptions(schedule)), grid)  # type: ignore[arg-type]


@pytest.mark.parametrize("grid", [Grid(), Grid(z=2, data=2)], ids=grid_id)
def test_steps_that_fp16_skips_are_skipped_with_it_too(grid: Grid) -> None:
    found = check(replace(CASE, model=LLAMA, precision="fp16", optim=OptimConfig(learning_rate=1e-3)), grid, steps=6)
    assert {"skipped" in step for step in found[0].steps} == {True, False}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("precision", "within"), [("fp16", 2.0**-11), ("bf16", 2.0**-8)])
@pytest.mark.parametrize("grid", [Grid(), Grid(z=2), Grid(x=2, data=2), Grid(data=2, pipe=2)], ids=grid_id)
def test_gradients_stay_in_half_precision_where_sums_are_asked_for_in_it(
    grid: Grid, precision: PrecisionName, within: float
) -> None:
    """A rounding for each of two micro-batches, and of what becomes of weights in three steps."""

    def steps(comm: Comm, training: Training) -> tuple[torch.dtype, list[tuple[float, float]]]:
        trainer = trainer_of(training, comm)
        trainer.loss_scale = LossScale() if precision == "fp16" else None
        taken = [trainer.step() for _ in range(STEPS)]
        return trainer.model.flat_gradients.dtype, [(step.loss, step.gradient_norm) for step in taken]

    training = replace(CASE, batch=Batch(8, 1), precision=precision, reduce_dtype=precision)
    ((wide, one), *_), ((half, other), *_) = (
        run_ranks(grid, partial(steps, training=replace(training, offload=offload))) for offload in (False, True)
    )
    assert (wide, half) == (torch.float32, DTYPES[precision])
    assert one != other
    for mine, its in zip(one, other, strict=True):
        assert mine == pytest.approx(its, rel=within)


@pytest.mark.parametrize(("saves", "resumes"), [(True, True), (True, False), (False, True)])
def test_a_checkpoint_goes_on_the_same_with_it_and_without(saves: bool, resumes: bool, tmp_path: Path) -> None:
    def save(comm: Comm) -> Outcome:
        trainer = trainer_of(replace(CASE, offload=saves), comm)
        outcome(trainer, 2)
        trainer.save(tmp_path)
        return outcome(trainer)

    def resume(comm: Comm) -> Outcome:
        folder = tmp_path / "step-2"
        saved = Saved(folder, read_manifest(folder, CASE.model))
        return outcome(trainer_of(replace(CASE, offload=resumes), comm, saved))

    whole, rest = (run_ranks(Grid(y=2, z=2), work) for work in (save, resume))
    assert all(map(same, whole, rest))


def test_matrices_lie_on_the_host_and_their_copy_on_the_device() -> None:
    trainer = trainer_of(replace(CASE, offload=True), Comm(Grid()))
    flat = trainer.model.schedule.flat
    matrices = [p for name, p in trainer.model.local_parameters().items() if trainer.model.placements[name].sharded]
    assert flat.offloaded == sum(p.numel() for p in matrices) > 5 * BUCKET
    assert {p.untyped_storage().data_ptr() for p in matrices} == {flat.elements.host.untyped_storage().data_ptr()}
    assert len(flat.masters) == sum(p.numel() for p in trainer.model.parameters()) - flat.offloaded
    without = trainer_of(CASE, Comm(Grid())).model.schedule.flat
    assert without.offloaded == 0
    assert len(without) == len(flat)


@pytest.mark.parametrize("grid", [Grid(), Grid(x=2), Grid(z=2)], ids=grid_id)
def test_layers_compute_with_nothing_that_lies_on_the_host(grid: Grid) -> None:
    def losses(comm: Comm, poisoned: bool) -> tuple[float, float]:
        trainer = trainer_of(replace(CASE, offload=True), comm)
        trainer.step()
        if poisoned:
            trainer.model.schedule.flat.elements.host.data.fill_(torch.nan)  # which PyTorch doesn't count as a change
        return trainer.step()[:2]

    right, same_again = (run_ranks(grid, partial(losses, poisoned=poisoned)) for poisoned in (False, True))
    assert right == same_again


def test_the_record_of_a_run_says_it() -> None:
    words = {"model": ModelChoice(model="gpt-test"), "batch": Batch(8), "data": "synthetic", "precision": "bf16"}
    config = TrainConfig(**words, offload=True)  # type: ignore[arg-type]
    run = checked(config, 1)
    assert run.training.offload
    assert run.as_options()["offload"] is True


def test_a_run_that_the_host_has_no_room_for_does_not_begin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("engine.comm.funnel.free_host_bytes", lambda: 10**6)
    options = ["--model", "gpt-test", "--batch-size", "8", "--data", "synthetic", "--precision", "bf16", "--offload"]
    assert main(["train", *options, "--device", "cpu", "--out", str(tmp_path / "result.json")]) != 0
    assert re.search(r"--offload .*\b1 rank\b.*\b0\.001 GB", capsys.readouterr().err)
    assert not dist.is_initialized(), "another run can begin in this process"


@pytest.mark.parametrize("stop", [2, 3, 4, 9, 10])
def test_buckets_bring_each_element_once_and_take_it_back(stop: int) -> None:
    host = torch.arange(10.0), torch.arange(10.0)
    places: list[int] = []
    for low, high, (one, other) in Buckets(host, torch.device("cpu"), 3).visits(2, stop):
        assert one.tolist() == list(range(low, high))
        places += range(low, high)
        one.mul_(2)
        other.neg_()
    assert places == list(range(2, stop))
    assert host[0].tolist() == [2 * at if 2 <= at < stop else at for at in range(10)]
    assert host[1].tolist() == [-at if 2 <= at < stop else at for at in range(10)]


@pytest.mark.parametrize(
    "command",
    [
        "check --grid 1x1x1x1 --ranks 1 --data synthetic --batch-size 8",
        "plan --system perlmutter --gpus 4 --batch-size 8",
    ],
)
def test_without_a_copy_in_half_precision_there_is_none(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--model", "gpt-test", "--precision", "fp32", "--offload"]) == 2
    assert re.search("--offload .*--precision is fp32", capsys.readouterr().err)
