"""Without an optimizer a step is its gradients: the same losses and norms, and neither moments nor fp32 weights."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from test_parity import BERT, LLAMA, SMALL, VIT, as_on_a_gpu
from test_schedule_turns import asked, compared
from torch import Tensor
from training import grid_id
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.cli.main import main
from engine.comm.funnel import Comm
from engine.footprint.memory import Footprint
from engine.grid import Grid
from engine.measure.recorder import Recorder
from engine.models.architecture import Architecture
from engine.models.choice import ModelChoice
from engine.overlap.flags import ALL
from engine.parallel.serial_state import full_state_dict
from engine.pipeline.registry import PipelineOptions
from engine.tracing.memory import trace_needs
from engine.tracing.step import trace
from engine.training.trainer import Trainer
from engine.training_record import OptimConfig, PrecisionName, Training, TrainingOptions

__all__ = ["as_on_a_gpu"]
CASE = Training(SMALL, Batch(8, 2), overlap=ALL)
GRIDS = [Grid(2, 1, 2, 1), Grid(data=2, pipe=2)]


class Outcome(NamedTuple):
    losses: list[float]
    norm: float
    """of the first step's gradients"""
    before: dict[str, Tensor]
    after: dict[str, Tensor]


def train(training: Training, grid: Grid) -> Outcome:
    def work(comm: Comm) -> Outcome:
        trainer = Trainer(training, training.model.task.data.synthetic(), comm, comm.recorder or Recorder())
        before = {name: weight.clone() for name, weight in full_state_dict(trainer.model).items()}
        steps = [trainer.step() for _ in range(2)]
        after = full_state_dict(trainer.model)
        return Outcome([step.loss for step in steps], steps[0].gradient_norm, before, after)

    return run_ranks(grid, work)[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("grid", GRIDS, ids=grid_id)
def test_the_first_step_is_that_of_adamw_and_no_weight_changes(
    grid: Grid, precision: PrecisionName, clip: float
) -> None:
    training = replace(CASE, precision=precision, optim=OptimConfig(clip=clip, learning_rate=0.1))
    adamw, none = train(training, grid), train(replace(training, optimizer="none"), grid)
    assert none.losses[0] == adamw.losses[0]
    assert none.norm == pytest.approx(adamw.norm, rel=1e-6 if precision == "fp32" else 1e-2)
    assert all(torch.equal(weight, none.after[name]) for name, weight in none.before.items())
    # what an optimizer would have changed
    assert not all(torch.equal(weight, adamw.after[name]) for name, weight in adamw.before.items())
    assert none.losses[1] != adamw.losses[1]


FAMILIES = {"gpt": SMALL, "llama": LLAMA, "bert": BERT, "vit": VIT, "unet": ModelChoice(model="unet-tiny").resolve()}


def same_first_step(model: Architecture, grid: Grid) -> None:
    training = replace(CASE, model=model, precision="bf16")
    adamw, none = train(training, grid), train(replace(training, optimizer="none"), grid)
    assert none.losses[0] == adamw.losses[0]
    assert none.norm == pytest.approx(adamw.norm, rel=1e-2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("grid", [Grid(), Grid(2, 2, 1, 1)], ids=grid_id)
@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES.keys())
def test_every_family_takes_weights_in_half_precision(model: Architecture, grid: Grid) -> None:
    same_first_step(model, grid)


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("grid", [Grid(), Grid(2, 2, 1, 1)], ids=grid_id)
@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES.keys())
def test_and_so_does_what_gpus_compile(model: Architecture, grid: Grid) -> None:
    same_first_step(model, grid)


def test_the_parts_of_memory_differ_by_what_the_optimizer_has() -> None:
    grid = Grid(data=2)
    for precision in ("fp32", "fp64"):
        training = replace(CASE, precision=precision)  # type: ignore[arg-type]
        adamw, none = (Footprint(replace(training, optimizer=name)).on(grid) for name in ("adamw", "none"))  # type: ignore[arg-type]
        assert adamw.state - none.state == 2 * training.master * SMALL.parameters, "two moments"
        assert replace(adamw, state=none.state) == none
    half = replace(CASE, precision="fp16")
    adamw, none = (Footprint(replace(half, optimizer=name)).on(grid) for name in ("adamw", "none"))  # type: ignore[arg-type]
    # fp32 weights beside fp16 ones, and two moments
    assert adamw.state + adamw.weights - none.state - none.weights == pytest.approx(12 * SMALL.parameters)
    assert (adamw.state, none.state) == (16 * SMALL.parameters, 6 * SMALL.parameters)
    summed = replace(half, optimizer="none", reduce_dtype="fp16")
    assert Footprint(summed).on(grid).state == 4 * SMALL.parameters, "as axonn-ipdps22 V-B has it beside the optimizer"


@pytest.mark.parametrize("name", ["1x1x1x2p4", "2x1x2x1p2"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_trace_holds_what_is_counted(name: str, precision: PrecisionName) -> None:
    model, grid = ModelChoice(layers=8, hidden=160, heads=4, vocab=256, seq=64).resolve(), Grid.parse(name)
    options = TrainingOptions(precision=precision, optimizer="none", reduce_dtype=precision, checkpoint_every=1)
    training = Training.of(options, model, Batch(16, 1), pipeline=PipelineOptions("1f1b"))
    found = trace(training, grid)
    assert trace_needs(training, grid).total == pytest.approx(found.peak_bytes, rel=0.05)
    assert Footprint(training).on(grid).total <= found.peak_bytes * (1 + Footprint(training).error)
    stepped = trace(replace(training, optimizer="adamw"), grid)
    # 16 bytes a parameter instead of 8; in bf16 as many, and 2 of the cast where weights are whole, instead of 4
    least, most = (2.0, 2.0) if precision == "fp32" else (4.0, 4.5)
    assert 0.98 * least <= stepped.state_bytes / found.state_bytes <= 1.02 * most


def test_a_contest_has_the_same_first_losses_and_its_record_says_so() -> None:
    contest, _ = asked(("gpipe",), optimizer="none")
    assert contest.as_options()["optimizer"] == "none"
    assert all(training.optimizer == "none" for training, _ in contest.trainings)
    ours, theirs = (compared(run)[1] for run in (contest, asked(("gpipe",))[0]))
    assert len(ours) == len(theirs)
    assert ours[0] == theirs[0]
    assert ours[-1] != theirs[-1]


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, float]:
    options = ["--model", "gpt-test", "--batch-size", "8", "--data", "synthetic", "--grid", "1x1x1x1p2", "--ranks", "2"]
    assert main(["check", *options, "--json", *words]) == 0
    parts: dict[str, float] = json.loads(capsys.readouterr().out)["memory_bytes_per_rank"]
    return parts


def test_check_counts_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    adamw, none = told(capsys), told(capsys, "--optimizer", "none")
    assert none["state"] == adamw["state"] / 2
    assert {**none, "state": adamw["state"]} == pytest.approx(adamw, rel=1e-3)


def test_a_plan_without_it_has_no_days_and_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--system", "vcluster", "--model", "gpt-test", "--gpus", "1", "--batch-size", "8", "--pipe", "1", "--json"]
    plans = []
    for name in ("adamw", "none"):
        assert main(["plan", *words, "--optimizer", name]) == 0
        plans.append(json.loads(capsys.readouterr().out))
    assert [plan["training"].get("optimizer") for plan in plans] == ["adamw", "none"]
    assert ["token_budget" in plan for plan in plans] == [True, False]
    adamw, none = (plan["rows"][0]["memory"]["parts"]["state"] for plan in plans)
    assert none < adamw


def test_what_makes_no_sense_without_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "gpt-test", "--batch-size", "8", "--data", "synthetic", "--optimizer", "none"]
    out = tmp_path / "result.json"
    assert main(["train", *words, "--out", str(out)]) == 2
    assert not out.exists()
    assert "bench pipeline" in capsys.readouterr().err
    both = [*words, "--precision", "bf16", "--offload", "--ranks", "1"]
    assert main(["check", *both]) == 2
    assert "--offload" in capsys.readouterr().err
