"""Evaluation: loss and what is right of data that isn't trained on, equal to the serial model's on every grid."""

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from test_parity import BERT, LLAMA, SMALL, VIT
from training import SEED, Case, batch_of_step, build_serial, start
from virtual_ranks import run_ranks

from engine.cli.main import main
from engine.comm.funnel import Comm
from engine.grid import SPLITTING_ROWS, Grid
from engine.layers.counter_random import BatchRows
from engine.layers.loss import SerialCrossEntropy
from engine.models.architecture import Architecture
from engine.models.catalogue import lookup
from engine.parallel.runner import Runner
from engine.pipeline.fixed_schedules import Interleaved, OneFOneB
from engine.tensor_mode import SPLIT, SPLIT_HEADS, SQUARE

NETWORKS: dict[str, Architecture] = {
    "gpt": replace(SMALL, tied=True, dropout=0.2),
    "llama": LLAMA,
    "bert": replace(BERT, dropout=0.2),
    "vit": VIT,
    "unet": lookup("unet-test"),
}
SEQUENCES = 24


def case_of(name: str, **changes: object) -> Case:
    return replace(Case(NETWORKS[name], sequences=SEQUENCES, micro_batches=2), **changes)  # type: ignore[arg-type]


@cache
def serial(name: str) -> tuple[float, float]:
    """Sum the losses of a batch, and count what is right of it, as one device does in one go."""
    case = case_of(name)
    model, batch, task = build_serial(case), batch_of_step(case, 7), NETWORKS[name].task
    model.eval()
    with torch.no_grad():
        output = model(*task.inputs(batch))
        right = task.right(model.criterion, output, batch)
        return task.loss(model.criterion, output, batch, 1.0).item(), math.nan if right is None else float(right)


def of_grid(case: Case, comm: Comm) -> tuple[float, float]:
    """Do the same on a grid, after a step, and take another step behind it."""
    model = start(case, comm)
    runner = Runner(model, case.order)
    share = case.sequences // comm.grid.batch_split
    first = comm.grid.position(comm.coords, SPLITTING_ROWS) * share
    batch = batch_of_step(case, 7)
    micro_batches = [
        (BatchRows(SEED, 7, rows), {name: tensor[rows] for name, tensor in batch.items()})
        for rows in torch.arange(first, first + share).chunk(case.micro_batches)
    ]
    found = []
    for _ in range(2):
        found = [model.sum_losses(one).item() for one in runner.evaluate(micro_batches)]
        runner.run(micro_batches, 1e6)
        model.finish_step()
    return found[0], found[1]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "grid", "changes"),
    [
        ("gpt", Grid(), {}),
        ("gpt", Grid(2, 2, 2), {}),
        ("gpt", Grid(x=4), {}),
        ("gpt", Grid(2, 2), {"mode": SPLIT}),
        ("gpt", Grid(1, 2, 2), {"mode": SPLIT_HEADS}),
        ("gpt", Grid(2, 2), {"mode": SQUARE}),
        ("gpt", Grid(z=2, pipe=2), {"order": OneFOneB()}),
        ("gpt", Grid(x=2, pipe=2), {"order": Interleaved(2), "config": replace(SMALL, layers=4)}),
        ("llama", Grid(3, 1, 2, 2), {}),
        ("llama", Grid(1, 2, 1, 1, 2), {"mode": SPLIT, "checkpoint": 1}),
        ("bert", Grid(2, 2), {}),
        ("bert", Grid(2, 2), {"mode": SPLIT}),
        ("vit", Grid(2, 2), {"mode": SPLIT}),
        ("vit", Grid(2, 1, 2), {}),
        ("unet", Grid(2, 1, 2), {}),
        ("unet", Grid(pipe=2), {"order": OneFOneB()}),
    ],
    ids=str,
)
def test_a_grid_finds_the_loss_and_counts_what_the_serial_model_does(
    name: str, grid: Grid, changes: dict[str, object]
) -> None:
    case = case_of(name, **changes)
    expected = serial(name)
    if "config" in changes:
        NETWORKS["other"] = case.config
        expected = serial("other")
    for loss, right in run_ranks(grid, lambda comm: of_grid(case, comm)):
        assert loss == pytest.approx(expected[0], rel=1e-10)
        assert right == pytest.approx(expected[1], nan_ok=True)


def test_of_equal_logits_the_first_counts() -> None:
    criterion = SerialCrossEntropy(3)
    logits = torch.tensor([[1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    assert criterion.right(logits, torch.tensor([0, 2, 0, -100])) == 2


def prepared(folder: Path, name: str, text: str) -> Path:
    """Prepare a corpus of a text, by the tokenizer of the first one."""
    source, out = folder / f"{name}-text", folder / name
    source.mkdir()
    (source / "text.txt").write_text(text)
    words = ["data", "prepare", "--source", str(source), "--out", str(out)]
    first = folder / "train"
    words += ["--vocab-size", "300"] if name == "train" else ["--tokenizer", str(first / "tokenizer.json")]
    assert main(words) == 0
    return out


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("corpora")
    text = "To be, or not to be, that is the question. " * 200
    return prepared(folder, "train", text), prepared(folder, "other", text[44:])


def of_train(corpora: tuple[Path, Path], out: Path, *words: str) -> list[str]:
    model = ["--layers", "1", "--hidden", "32", "--heads", "2", "--vocab", "300", "--seq", "16", "--batch-size", "8"]
    data = ["--data", str(corpora[0]), "--evaluation-data", str(corpora[1]), "--device", "cpu"]
    return ["train", *model, *data, "--out", str(out), *words]


def test_a_training_is_evaluated_every_so_many_steps_and_at_its_end(corpora: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    assert main(of_train(corpora, out, "--iterations", "5", "--evaluate-every", "2", "--learning-rate", "0.01")) == 0
    found = json.loads(out.read_text())
    assert [one["step"] for one in found["evaluations"]] == [2, 4, 5]
    assert found["evaluations"][-1]["loss"] < found["evaluations"][0]["loss"]
    assert all(0 <= one["right"] <= 1 and one["samples"] % 8 == 0 for one in found["evaluations"])
    assert found["config"]["evaluation_sha256"] != found["config"]["data_sha256"]
    alone = tmp_path / "alone.json"
    words = of_train(corpora, alone, "--iterations", "5", "--learning-rate", "0.01")
    at = words.index("--evaluation-data")
    assert main([*words[:at], *words[at + 2 :]]) == 0
    losses = [[step["loss"] for step in json.loads(one.read_text())["iterations"]] for one in (out, alone)]
    assert losses[0] == losses[1], "evaluation changes nothing of the training"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--evaluate-every", "0"), "--evaluate-every"),
        (("--evaluate-every", "-1"), "--evaluate-every"),
        (("--evaluate-every", "1", "--batch-size", "100000"), "whole batches of 100000"),
    ],
)
def test_what_can_not_be_evaluated_is_refused(
    corpora: tuple[Path, Path], tmp_path: Path, words: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = of_train(corpora, tmp_path / "result.json")
    if "--batch-size" in words:
        at = given.index("--batch-size")
        del given[at : at + 2]
    assert main([*given, *words]) == 2
    assert told in capsys.readouterr().err
