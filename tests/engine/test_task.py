"""A task is a file: what a batch is made of and what its loss is, the trainer and the parallel model take from it."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from dry_plans import dry_plan
from torch import Tensor, nn
from training import grid_id
from virtual_ranks import run_ranks

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.data import sampler
from engine.data.dataset import Text
from engine.data.shuffle import Arrays, Ints, key, mix
from engine.grid import Grid
from engine.layers.loss import SerialCrossEntropy
from engine.measure.recorder import Recorder
from engine.models import tasks
from engine.models.gpt.config import GPTConfig
from engine.models.tasks import NextToken
from engine.parallel.initial import initialise_serial
from engine.training.trainer import Trainer

ROWS = 8


@dataclass(frozen=True)
class MaskedToken(NextToken):
    """Some tokens are hidden, as many as a hash of seed, position and place says, and only those are to be found."""

    def batch(self, samples: Arrays, seed: int, positions: Ints) -> Arrays:
        tokens = samples["tokens"][:, :-1]
        places = np.arange(tokens.shape[1], dtype=np.uint64)
        hidden = mix(mix(key(seed, 9) ^ positions.astype(np.uint64))[:, None] + places) % np.uint64(3) == 0
        return {"tokens": np.where(hidden, 0, tokens), "targets": np.where(hidden, tokens, -100)}

    def criterion(self) -> nn.Module:
        return SerialCrossEntropy(self.classes, ignores=True)

    def valid(self, batch: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return (batch["targets"] >= 0).sum()


class MaskedGPT(GPTConfig):
    @property
    def task(self) -> MaskedToken:
        return MaskedToken(Text(self.vocabulary, self.sequence))


MODEL = MaskedGPT("masked", layers=1, hidden=8, heads=2, vocabulary=12, sequence=6)


def losses(comm: Comm, precision: str = "fp64") -> list[float]:
    """Loss and gradient norm of two steps."""
    micro = 2 if comm.grid.batch_split == 2 else None
    training, _ = dry_plan(MODEL, comm.grid, Batch(ROWS, micro), checkpoint=False, precision=precision)
    trainer = Trainer(training, MODEL.task.data.synthetic(), comm, Recorder())
    return [value for _ in range(2) for value in trainer.step()[:2]]


@pytest.mark.parametrize("grid", [Grid(2), Grid(1, 2), Grid(1, 1, 2), Grid(1, 1, 1, 2), Grid(2, 1, 2, 2)], ids=grid_id)
def test_a_mean_over_as_many_things_as_the_batch_happens_to_have_is_that_of_every_grid(grid: Grid) -> None:
    (alone,) = run_ranks(Grid(), losses)
    for found in run_ranks(grid, losses):
        assert found == pytest.approx(alone, rel=1e-10)


@pytest.mark.parametrize(("precision", "close"), [("fp32", 1e-5), ("bf16", 3e-2)])
def test_what_the_batch_happens_to_have_divides_in_every_precision(precision: str, close: float) -> None:
    (alone,) = run_ranks(Grid(), losses)
    for grid in (Grid(), Grid(2, 2)):
        assert run_ranks(grid, lambda comm: losses(comm, precision))[0] == pytest.approx(alone, rel=close)


def test_the_first_loss_is_the_serial_networks() -> None:
    training, _ = dry_plan(MODEL, Grid(), Batch(ROWS), checkpoint=False, precision="fp64")
    read = sampler.batch(
        MODEL.task.data.synthetic(), MODEL.task.batch, seed=training.seed, step=0, batch_size=ROWS, rows=range(ROWS)
    )
    counts = (read["targets"] >= 0).sum(axis=1)
    assert len(set(counts.tolist())) > 2
    model = initialise_serial(MODEL, training.seed, dtype=torch.float64)
    logits = model(torch.from_numpy(read["tokens"])).flatten(0, 1)
    expected = F.cross_entropy(logits, torch.from_numpy(read["targets"]).flatten()).item()
    assert run_ranks(Grid(), losses)[0][0] == pytest.approx(expected, rel=1e-12)


def test_a_token_in_seven_is_to_be_found_most_of_them_hidden() -> None:
    task = tasks.MaskedToken(Text(1000, 512))
    tokens = task.data.synthetic().read(3, np.arange(400))["tokens"]
    made = task.batch({"tokens": tokens}, 3, np.arange(400))
    chosen = made["targets"] >= 0
    assert (made["targets"][chosen] == tokens[:, :-1][chosen]).all()
    assert (made["tokens"][~chosen] == tokens[:, :-1][~chosen]).all()
    assert chosen.mean() == pytest.approx(0.15, abs=0.005)
    found = made["tokens"][chosen]
    assert (found == 999).mean() == pytest.approx(0.8, abs=0.01)
    kept = found == made["targets"][chosen]
    assert kept.mean() == pytest.approx(0.1, abs=0.01)
    others = found[(found != 999) & ~kept]
    assert (others < 500).mean() == pytest.approx(0.5, abs=0.03)
    assert chosen.any(axis=0).all()
    assert made["segments"][:, :256].max() == 0
    assert made["segments"][:, 256:].min() == 1


def test_a_fate_follows_from_the_seed_and_the_place_alone() -> None:
    task, rows = tasks.MaskedToken(Text(50, 8)), np.arange(6)
    tokens = np.arange(6 * 9).reshape(6, 9) % 50
    whole = task.batch({"tokens": tokens}, 1, rows)
    part = task.batch({"tokens": tokens[2:5]}, 1, rows[2:5])
    for name, array in part.items():
        assert (array == whole[name][2:5]).all()
    for other in (task.batch({"tokens": tokens}, 2, rows), task.batch({"tokens": tokens}, 1, rows + 6)):
        assert (other["targets"] != whole["targets"]).any()
    assert (whole["targets"] >= 0).any(axis=1).all(), "a short row has one token to be found at least"
