"""Networks in folders: each rank reads its own part, what is written back is bit for bit what was read, and what can't
be trained is refused before anything starts.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_command import train
from pretrained_folders import BERT, GPT2, LLAMA, NEOX, UNET, contents, write
from safetensors.torch import load_file, save_file
from training import grid_id
from virtual_ranks import run_ranks

from engine.comm.funnel import Comm
from engine.errors import RunError, UsageError
from engine.grid import Grid
from engine.models.adapters.files import export, weights_of
from engine.models.adapters.folder import Pretrained, open_pretrained
from engine.models.choice import ModelChoice
from engine.overlap.flags import Overlap
from engine.parallel.model import ParallelModel
from engine.parallel.parallelize import parallelize
from engine.precision import Precision

KINDS = {
    "llama-bf16": (LLAMA, torch.bfloat16, 1),
    "gpt2-masks": (GPT2, torch.float32, 1),
    "neox-files": (NEOX, torch.float32, 3),
    "bert-norms": (BERT, torch.float32, 1),
    "unet-attention": (UNET, torch.float32, 1),
    "unet-files": (UNET, torch.bfloat16, 2),
}
ONE = ("--batch-size", "4", "--data", "synthetic", "--iterations", "1", "--warmup", "0")


def read(pretrained: Pretrained, comm: Comm) -> ParallelModel:
    with weights_of(pretrained) as loader:
        return parallelize(
            pretrained.architecture, comm, precision=Precision.parse("fp32"), seed=0, loader=loader, overlap=Overlap()
        )


@pytest.mark.parametrize("grid", [Grid(), Grid(2, 2, 1, 1), Grid(1, 2, 2, 2), Grid(2, 1, 4, 1)], ids=grid_id)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_on_a_grid_is_written_back_bit_for_bit(kind: str, grid: Grid, tmp_path: Path) -> None:
    config, dtype, files = KINDS[kind]
    pretrained = open_pretrained(write(tmp_path / "in", config, dtype=dtype, files=files))
    run_ranks(grid, lambda comm: export(pretrained, comm, read(pretrained, comm).local_parameters(), tmp_path / "out"))
    assert contents(tmp_path / "out") == contents(tmp_path / "in")


def test_norms_under_the_names_of_old_files_are_read_as_weight_and_bias(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", BERT)
    read_in, in_file = (
        read(open_pretrained(folder), Comm(Grid())).local_parameters(),
        load_file(folder / "model.safetensors"),
    )
    for norm, old in {"norm": "bert.embeddings", "blocks.0.norm2": "bert.encoder.layer.0.output"}.items():
        assert torch.equal(read_in[f"{norm}.weight"], in_file[f"{old}.LayerNorm.gamma"])
        assert torch.equal(read_in[f"{norm}.bias"], in_file[f"{old}.LayerNorm.beta"])


def test_weights_that_can_not_be_written_say_where(tmp_path: Path) -> None:
    pretrained = open_pretrained(write(tmp_path / "in", LLAMA))
    (tmp_path / "file").write_text("")
    comm = Comm(Grid())
    with pytest.raises(RunError, match=r"The weights could not be written to .*/file/out: .*Not a directory"):
        export(pretrained, comm, read(pretrained, comm).local_parameters(), tmp_path / "file" / "out")


@pytest.mark.parametrize("config", [LLAMA, UNET], ids=["llama", "unet"])
def test_a_rank_reads_as_many_elements_as_it_stores(config: dict[str, Any], tmp_path: Path) -> None:
    grid = Grid(2, 2, 2, 1)
    pretrained = open_pretrained(write(tmp_path / "in", config))
    for name, placement in pretrained.architecture.placements().items():
        for rank in range(grid.size):
            rectangles = placement.rectangles(grid, grid.coords(rank))
            runs = [run for one in rectangles for run in pretrained.stored.runs(name, one.region)]
            sizes = [torch.Size(part.stop - part.start for part in run.region).numel() for run in runs]
            assert sum(sizes) == placement.local_numel(grid)


def altered(folder: Path, **changed: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changed
    (folder / "config.json").write_text(json.dumps({key: one for key, one in config.items() if one != "gone"}))


def with_tensors(folder: Path, changed: dict[str, torch.Tensor | None]) -> None:
    tensors = load_file(folder / "model.safetensors") | changed
    save_file({name: one for name, one in tensors.items() if one is not None}, folder / "model.safetensors")


def longer(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"more")


def cut(folder: Path, length: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])


NORM = "model.norm.weight"
WRONG: dict[str, tuple[Any, str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "config.json isn't there: give the folder of a network"),
    "config cut": (lambda f: (f / "config.json").write_text("{"), "config.json can't be read as JSON"),
    "architecture": (lambda f: altered(f, model_type="mamba"), "knows the model_type 'mamba' of .*: known are gpt2,"),
    "class": (lambda f: altered(f, model_type="gone", _class_name="VQ"), "knows the _class_name 'VQ' of .*: known are"),
    "head": (lambda f: altered(f, architectures=["LlamaForTokenClassification"]), "is a LlamaForTokenClassification"),
    "option": (lambda f: altered(f, logit_scale=3.0), "has logit_scale=3.0, an option that no adapter knows"),
    "quantised": (lambda f: altered(f, quantization_config={"bits": 4}), "has quantization_config={'bits': 4}"),
    "activation": (lambda f: altered(f, hidden_act="relu"), "has hidden_act='relu', which .*: only 'silu' can"),
    "positions": (
        lambda f: altered(f, rope_scaling={"type": "dynamic", "factor": 2.0}),
        "rope_scaling of .* has rope_type='dynamic', which can't be trained here: only 'default' or 'llama3'",
    ),
    "dropout": (lambda f: altered(f, attention_dropout=0.1), "has attention_dropout=0.1, but dropout here .*eval mode"),
    "size": (lambda f: altered(f, hidden_size="gone"), "says nothing of hidden_size"),
    "type": (lambda f: altered(f, vocab_size="many"), "vocab_size='many', but that is to be of type int"),
    "theta": (lambda f: altered(f, rope_parameters={"rope_theta": "high"}), "rope_theta='high', but that is to be of"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "neither model.safetensors nor model.*index"),
    "weights cut": (lambda f: cut(f, 5000), "is cut short: it has 5000 bytes, .* ends at [0-9]+; copy it again"),
    "header cut": (lambda f: cut(f, 100), "cut short or no safetensors: its header can't be read"),
    "bytes too many": (lambda f: longer(f), r"has [0-9]+ bytes, but its last tensor ends at [0-9]+: copy it again"),
    "missing": (lambda f: with_tensors(f, {NORM: None}), "has no model.norm.weight, which its configuration asks for"),
    "shape": (lambda f: with_tensors(f, {NORM: torch.ones(31)}), r"shape \[31\], but its configuration asks \w+ \[32"),
    "unknown": (lambda f: with_tensors(f, {"lora": torch.ones(2)}), "has lora, which no adapter knows"),
    "second copy": (lambda f: with_tensors(f, {"lm_head.weight": torch.ones(3, 32)}), "has lm_head.weight, which no"),
    "padding": (lambda f: altered(f, pad_token_id=24), "pad_token_id=24, which can't be trained here: only tokens"),
    "integers": (lambda f: with_tensors(f, {NORM: torch.ones(32).int()}), "model.norm.weight in I32, but only F64, F"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_folder_that_can_not_be_trained_says_why(what: str, tmp_path: Path) -> None:
    spoil, said = WRONG[what]
    folder = write(tmp_path / "in", LLAMA)
    ModelChoice(model=f"hf:{folder}").pretrained()
    spoil(folder)
    with pytest.raises(UsageError, match=said):
        ModelChoice(model=f"hf:{folder}").pretrained()


HEAD = "lm_head.weight"
UNSOUND: dict[str, tuple[Any, str]] = {
    "nan": (lambda f: with_tensors(f, {NORM: torch.ones(32).index_fill(0, torch.tensor(5), math.nan)}), NORM),
    "inf": (lambda f: with_tensors(f, {NORM: torch.ones(32).index_fill(0, torch.tensor(5), math.inf)}), NORM),
    "a head of its own": (lambda f: with_tensors(f, {HEAD: torch.ones(24, 32)}), "twice, with different numbers"),
}


@pytest.mark.parametrize("what", UNSOUND)
def test_numbers_that_can_not_be_meant_are_named_before_the_first_step(what: str, tmp_path: Path) -> None:
    spoil, said = UNSOUND[what]
    folder = write(tmp_path / "in", LLAMA)
    pretrained = open_pretrained(folder)
    run_ranks(Grid(), lambda comm: read(pretrained, comm))
    spoil(folder)
    pretrained = open_pretrained(folder)
    for grid in (Grid(), Grid(2, 1, 2, 1)):
        with pytest.raises(RunError, match=f"{re.escape(str(folder))} has .*{said}"):
            run_ranks(grid, lambda comm: read(pretrained, comm))


def test_an_index_whose_files_are_not_all_there_says_which(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", NEOX, files=3)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["lm_head.weight"] = index["weight_map"].pop("embed_out.weight")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match=r"places lm_head.weight in model-00001-of-00003.safetensors, which doesn't"):
        open_pretrained(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UsageError, match=r"names model-00002-of-00003.safetensors, which isn't in"):
        open_pretrained(folder)


def test_options_that_a_folder_has_of_its_own_are_not_given_twice(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", GPT2 | {"attn_pdrop": 0.1})
    with pytest.raises(UsageError, match=r"is as its config.json says: give only --seq and --dropout\."):
        ModelChoice(model=f"hf:{folder}", layers=1).resolve()
    with pytest.raises(UsageError, match=r"attn_pdrop=0.1, but dropout here is the same everywhere.*give --dropout"):
        ModelChoice(model=f"hf:{folder}").resolve()
    shorter = ModelChoice(model=f"hf:{folder}", seq=8, dropout=0.2).resolve()
    assert (shorter.sequence, shorter.shape["positions"], shorter.options["dropout"]) == (8, 16, 0.2)
    with pytest.raises(UsageError, match="A sequence of 17 tokens is longer than the table of 16 positions"):
        ModelChoice(model=f"hf:{folder}", seq=17, dropout=0.0).resolve()


def test_the_command_refuses_a_folder_before_anything_starts(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", LLAMA)
    options = ("--model", f"hf:{folder}", *ONE, "--out", str(tmp_path / "result.json"))
    codes, said = train(1, *options, "--export", str(folder))
    assert codes == [2]
    assert said[0].endswith("is not empty: name a new folder, nothing is written over.\n")
    codes, said = train(1, "--model", "gpt-test", *options[2:], "--export", str(tmp_path / "new"))
    assert codes == [2]
    assert said == ["--export DIR writes the network of --model hf:DIR in its format: give that, or --save DIR.\n"]
    cut(folder, 5000)
    codes, said = train(1, *options)
    assert codes == [2]
    assert "is cut short" in said[0]
    assert said[0].count("\n") == 1
    assert not (tmp_path / "result.json").exists()
