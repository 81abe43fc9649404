"""Another optimizer needs only the protocol: it trains, is saved and resumed, and a plan counts what it keeps."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from test_parity import SMALL
from test_switching import trainer
from torch import Tensor, nn
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.checkpoint import store
from engine.checkpoint.manifest import Saved, read_manifest
from engine.comm.funnel import Comm
from engine.errors import RunError
from engine.footprint.memory import Footprint
from engine.grid import Grid
from engine.optimizer_state import OptimizerState
from engine.overlap.flags import ALL
from engine.parallel.model import ParallelModel
from engine.parallel.serial_state import full_state_dict
from engine.training.optim import AdamW, MakeOptimizer, Optimizer
from engine.training.trainer import Trainer
from engine.training_record import OptimConfig, Training


class SGD:
    """Plain descent with momentum, which it keeps on the host."""

    keeps = OptimizerState(host=("momentum",))

    def __init__(self, model: ParallelModel, config: OptimConfig) -> None:
        self._model, self.learning_rate = model, config.learning_rate
        flat = model.schedule.flat
        self._momentum = torch.zeros_like(flat.masters, device="cpu")
        self.state: Mapping[nn.Parameter, Mapping[str, Tensor]] = {
            parameter: {"momentum": flat.view(self._momentum, parameter)} for parameter in flat.places
        }

    def start_step(self, done: int, *, skipped: int = 0) -> None:
        self.learning_rate = 0.1 / (1 + done)

    @torch.no_grad()
    def step(self, start: int = 0, stop: int | None = None, *, scale: Tensor | None = None) -> None:
        schedule = self._model.schedule
        gradients, momentum = schedule.flat_gradients[start:stop], self._momentum[start:stop]
        momentum.mul_(0.9).add_((gradients if scale is None else gradients * scale).cpu())
        schedule.flat.masters[start:stop].sub_(momentum.to(gradients.device), alpha=self.learning_rate)


def training_of(comm: Comm, optimizer: MakeOptimizer) -> Trainer:
    first = trainer(comm, ALL)
    return Trainer(first.training, first.dataset, comm, first.recorder, optimizer=optimizer)


def losses(training: Trainer, steps: int) -> list[float]:
    return [training.step().loss for _ in range(steps)]


def test_another_optimizer_trains_and_resumes_on_another_grid(tmp_path: Path) -> None:
    def train(comm: Comm) -> tuple[list[float], list[float], dict[str, Tensor]]:
        training = training_of(comm, SGD)
        before = losses(training, 2)
        training.save(tmp_path)
        return before, losses(training, 2), full_state_dict(training.model)

    def resume(comm: Comm) -> tuple[list[float], dict[str, Tensor]]:
        training = training_of(comm, SGD)
        saved = Saved(tmp_path / "step-2", read_manifest(tmp_path / "step-2", training.training.model))
        store.load(saved, training.model, training.optimizer.state)
        training.done = 2
        return losses(training, 2), full_state_dict(training.model)

    before, expected, weights = run_ranks(Grid(z=2), train, record=True)[0]
    resumed, again = run_ranks(Grid(x=2), resume, record=True)[0]
    assert len({*before, *expected}) == 4
    assert resumed == pytest.approx(expected, rel=1e-5)
    for name, weight in weights.items():
        assert torch.allclose(again[name], weight, rtol=1e-4, atol=1e-6), name


def test_a_checkpoint_of_another_optimizer_is_refused(tmp_path: Path) -> None:
    def resume(comm: Comm) -> None:
        training_of(comm, SGD).save(tmp_path)
        training = training_of(comm, AdamW)
        saved = Saved(tmp_path / "step-0", read_manifest(tmp_path / "step-0", training.training.model))
        store.load(saved, training.model, training.optimizer.state)

    with pytest.raises(RunError, match="exp_avg: resume "):
        run_ranks(Grid(), resume, record=True)


@pytest.mark.parametrize("make", [AdamW, SGD])
def test_an_optimizer_keeps_what_it_says(make: MakeOptimizer) -> None:
    def kept(comm: Comm) -> tuple[Optimizer, int]:
        training = training_of(comm, make)
        return training.optimizer, training.model.schedule.flat.masters.nbytes

    optimizer, parameters = run_ranks(Grid(z=2), kept, record=True)[0]
    sizes = sum(tensor.nbytes for tensors in optimizer.state.values() for tensor in tensors.values())
    assert sizes == optimizer.keeps.device_bytes(parameters) + optimizer.keeps.host_bytes(parameters)
    assert all(tuple(tensors) == optimizer.keeps.names for tensors in optimizer.state.values())


def test_a_plan_counts_what_an_optimizer_keeps_on_the_device() -> None:
    adamw, sgd = (
        Footprint(Training(SMALL, Batch(8)), optimizer=optimizer).on(Grid()).state
        for optimizer in (AdamW.keeps, SGD.keeps)
    )
    assert sgd == pytest.approx(adamw / 2)
