"""What a step is said to need is what the tensors of a real one take, on every part of a grid and in every dtype."""

import json

import pytest
import torch
from live_storage import LiveStorage, peak_of_steps

from engine.batch import Batch
from engine.cli.main import main
from engine.grid import Grid
from engine.models.choice import ModelChoice
from engine.overlap.flags import Overlap
from engine.planning.fit import parameters_per_rank
from engine.planning.memory import Footprint, Needs
from engine.training.config import TrainConfig
from engine.training.plan import checked

WIDE_VOCABULARY = ModelChoice(layers=3, hidden=128, heads=4, vocab=2048, seq=64)
DEEP = ModelChoice(layers=5, hidden=160, heads=4, vocab=256, seq=64)
LLAMA = ModelChoice(architecture="llama", layers=3, hidden=128, heads=4, kv_heads=2, ffn=384, vocab=2048, seq=64)


def _config(model: ModelChoice, grid: str, batch: Batch, precision: str, checkpoint: bool, overlap: str) -> TrainConfig:
    return TrainConfig(
        model=model,
        grid=Grid.parse(grid),
        batch=batch,
        data="synthetic",
        precision=precision,  # type: ignore[arg-type]
        checkpoint_activations=checkpoint,
        overlap=Overlap.parse(overlap),
    )


def needs(config: TrainConfig) -> Needs:
    assert config.grid is not None
    return Footprint(config.model.resolve(), config.workload).on(config.grid)


@pytest.mark.parametrize(
    ("grid", "batch", "precision", "checkpoint", "overlap"),
    [
        ("1x1x1x1", Batch(8), "fp32", False, "none"),
        ("1x1x1x1", Batch(8), "fp32", True, "none"),
        ("1x1x1x1", Batch(8), "bf16", True, "none"),
        ("2x1x2x1", Batch(8, 2), "fp32", True, "none"),
        ("2x1x2x1", Batch(8, 2), "fp32", True, "oar,ors,oag,cache=2,data"),
        ("2x2x2x1", Batch(8, 2), "bf16", True, "oar,ors,oag,data"),
        ("1x2x4x1", Batch(8), "bf16", False, "oar,ors,oag,data"),
        ("1x1x4x2", Batch(16), "fp32", True, "oar,ors,oag,cache=3,data"),
        ("2x1x1x2", Batch(8), "bf16", False, "none"),
    ],
)
@pytest.mark.parametrize(
    ("model", "lowest"), [(WIDE_VOCABULARY, 0.95), (DEEP, 0.95), (LLAMA, 0.88)], ids=["wide", "deep", "llama"]
)
def test_a_step_takes_what_is_counted(
    model: ModelChoice, lowest: float, grid: str, batch: Batch, precision: str, checkpoint: bool, overlap: str
) -> None:
    """A little isn't counted: temporaries, and on CPUs the keys and values that PyTorch repeats for Llama's queries."""
    config = _config(model, grid, batch, precision, checkpoint, overlap)
    assert config.grid is not None
    real = peak_of_steps(checked(config, config.grid.size))
    assert lowest < needs(config).total / real < 1.1


def test_each_part_is_what_it_is_for() -> None:
    some = needs(_config(DEEP, "1x1x4x1", Batch(8, 2), "fp32", True, "oag"))
    cached = needs(_config(DEEP, "1x1x4x1", Batch(8, 2), "fp32", True, "oag,cache=5"))
    blocks = 12 * 160**2 * 4
    assert cached.cache - some.cache == pytest.approx(4 * blocks)  # the fifth is in use at the fullest moment
    narrow = needs(_config(DEEP, "1x1x4x1", Batch(8, 2), "bf16", True, "oag"))
    assert narrow.state == pytest.approx(some.state)
    assert narrow.activations == pytest.approx(some.activations / 2)
    whole = needs(_config(DEEP, "1x1x4x1", Batch(8), "fp32", True, "oag"))
    assert whole.activations == pytest.approx(some.activations), "8 sequences on 4 ranks are micro-batches of 2"
    assert needs(_config(DEEP, "1x1x4x1", Batch(16), "fp32", True, "oag")).activations > 1.9 * some.activations
    assert needs(_config(DEEP, "1x1x1x1", Batch(8), "fp32", True, "oag,ors")).weights == 0
    double = needs(_config(DEEP, "1x1x1x1", Batch(8), "fp64", True, "none"))
    assert double.state == pytest.approx(2 * needs(_config(DEEP, "1x1x1x1", Batch(8), "fp32", True, "none")).state)


def test_check_tells_the_parts(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", "gpt-test", "--batch-size", "8", "--data", "synthetic", "--grid", "2x1x1x1"]
    assert main(["check", *options, "--ranks", "2"]) == 0
    told = json.loads(capsys.readouterr().out)["memory_bytes_per_rank"]
    assert list(told) == ["state", "activations", "weights", "cache", "logits", "gradients"]
    model = ModelChoice(model="gpt-test").resolve()
    assert told["state"] == 16 * parameters_per_rank(model, Grid(x=2))


def test_storage_is_counted_once_and_only_while_it_lives() -> None:
    with LiveStorage() as live:
        kept = torch.zeros(100)
        kept.view(10, 10).t()
        torch.ones(1000)
        assert live.now == 400
    assert live.peak == 4400
