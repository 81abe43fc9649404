"""Networks in folders: each rank reads its own part, what is written back is bit for bit what was read, and what can't
be trained is refused before anything starts.
"""

import json
import math
import re
from collections.abc import Callable
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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("grid", [Grid(), Grid(2, 2, 1, 1), Grid(1, 2, 2, 2), Grid(2, 1, 4, 1)], ids=grid_id)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_on_a_grid_is_written_back_bit_for_bit(kind: str, grid: Grid, tmp_path: Path) -> None:
    config, dtype, files = KINDS[kind]
    pretrained = open_pretrained(write(tmp_path / "in", config, dtype=dtype, files=files))
    run_ranks(grid, lambda comm: export(pretrained, comm, read(pretrained, comm).local_parameters(), tmp_path / "out"))
    assert contents(tmp_path / "out") == contents(tmp_path / "in")


def test_norms_under_the_names_of_old_files_are_read_as_weight_and_bias(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", BERT)
    read_in = read(open_pretrained(folder), Comm(Grid())).local_parameters()
    in_file = load_file(folder / "model.safetensors")
    for norm, old in {"norm": "bert.embeddings", "blocks.0.norm2": "bert.encoder.layer.0.output"}.items():
        assert torch.equal(read_in[f"{norm}.weight"], in_file[f"{old}.LayerNorm.gamma"])
        assert torch.equal(read_in[f"{norm}.bias"], in_file[f"{old}.LayerNorm.beta"])


def test_weights_that_can_not_be_written_say_where(tmp_path: Path) -> None:
    pretrained = open_pretrained(write(tmp_path / "in", LLAMA))
    (tmp_path / "file").write_text("")
    comm = Comm(Grid())
    with pytest.raises(RunError, match=r"/file/out: .*Not a directory"):
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


def alter(folder: Path, **changed: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | changed
    (folder / "config.json").write_text(json.dumps({key: one for key, one in config.items() if one != "gone"}))


def replace_tensors(folder: Path, changed: dict[str, torch.Tensor | None]) -> None:
    tensors = load_file(folder / "model.safetensors") | changed
    save_file({name: one for name, one in tensors.items() if one is not None}, folder / "model.safetensors")


def lengthen(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"more")


def cut(folder: Path, length: int) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])


NORM, HEAD = "model.norm.weight", "lm_head.weight"
WRONG: list[tuple[Callable[[Path], object], str]] = [
    (lambda f: (f / "config.json").unlink(), "config.json isn't there"),
    (lambda f: (f / "config.json").write_text("{"), "config.json can't be read"),
    (lambda f: alter(f, model_type="mamba"), "model_type 'mamba' of .* gpt2,"),
    (lambda f: alter(f, model_type="gone", _class_name="VQ"), "_class_name 'VQ'"),
    (lambda f: alter(f, architectures=["LlamaForTokenClassification"]), "LlamaForTokenClassification"),
    (lambda f: alter(f, logit_scale=3.0), "logit_scale=3.0"),
    (lambda f: alter(f, quantization_config={"bits": 4}), "quantization_config={'bits': 4}"),
    (lambda f: alter(f, hidden_act="relu"), "hidden_act='relu', .* 'silu'"),
    (lambda f: alter(f, rope_scaling={"type": "dynamic", "factor": 2.0}), "rope_scaling of .* rope_type='dynamic'"),
    (lambda f: alter(f, attention_dropout=0.1), "attention_dropout=0.1"),
    (lambda f: alter(f, hidden_size="gone"), "hidden_size"),
    (lambda f: alter(f, vocab_size="many"), "vocab_size='many', .* int"),
    (lambda f: alter(f, rope_parameters={"rope_theta": "high"}), "rope_theta='high'"),
    (lambda f: (f / "model.safetensors").unlink(), "model.safetensors nor model.*index"),
    (lambda f: cut(f, 5000), "5000 bytes"),
    (lambda f: cut(f, 100), "header can't be read"),
    (lambda f: lengthen(f), "[0-9]+ bytes, .* ends at [0-9]+"),
    (lambda f: replace_tensors(f, {NORM: None}), f"has no {NORM}"),
    (lambda f: replace_tensors(f, {NORM: torch.ones(31)}), r"\[31\], .* \[32"),
    (lambda f: replace_tensors(f, {"lora": torch.ones(2)}), "has lora"),
    (lambda f: replace_tensors(f, {HEAD: torch.ones(3, 32)}), f"has {HEAD}"),
    (lambda f: alter(f, pad_token_id=24), "pad_token_id=24"),
    (lambda f: replace_tensors(f, {NORM: torch.ones(32).int()}), f"{NORM} in I32, .* F64, F"),
]


@pytest.mark.parametrize(("spoil", "said"), WRONG, ids=[said for _, said in WRONG])
def test_a_folder_that_can_not_be_trained_says_why(spoil: Callable[[Path], object], said: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "in", LLAMA)
    ModelChoice(model=f"hf:{folder}").pretrained()
    spoil(folder)
    with pytest.raises(UsageError, match=said):
        ModelChoice(model=f"hf:{folder}").pretrained()


@pytest.mark.parametrize("number", [math.nan, math.inf, None], ids=str)
def test_numbers_that_can_not_be_meant_are_named_before_the_first_step(number: float | None, tmp_path: Path) -> None:
    """number: in a norm; None: a tied head has a copy of its own."""
    folder = write(tmp_path / "in", LLAMA)
    pretrained = open_pretrained(folder)
    run_ranks(Grid(), lambda comm: read(pretrained, comm))
    if number is None:
        replace_tensors(folder, {HEAD: torch.ones(24, 32)})
    else:
        replace_tensors(folder, {NORM: torch.ones(32).index_fill(0, torch.tensor(5), number)})
    pretrained = open_pretrained(folder)
    for grid in (Grid(), Grid(2, 1, 2, 1)):
        said = "twice" if number is None else NORM
        with pytest.raises(RunError, match=f"{re.escape(str(folder))} has .*{said}"):
            run_ranks(grid, lambda comm: read(pretrained, comm))


def test_an_index_whose_files_are_not_all_there_says_which(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", NEOX, files=3)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["lm_head.weight"] = index["weight_map"].pop("embed_out.weight")
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(UsageError, match=r"lm_head\.weight in model-00001-of-00003"):
        open_pretrained(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UsageError, match="model-00002-of-00003"):
        open_pretrained(folder)


def test_options_that_a_folder_has_of_its_own_are_not_given_twice(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", GPT2 | {"attn_pdrop": 0.1})
    with pytest.raises(UsageError, match="--seq and --dropout"):
        ModelChoice(model=f"hf:{folder}", layers=1).resolve()
    with pytest.raises(UsageError, match=r"attn_pdrop=0\.1.* --dropout"):
        ModelChoice(model=f"hf:{folder}").resolve()
    shorter = ModelChoice(model=f"hf:{folder}", seq=8, dropout=0.2).resolve()
    assert (shorter.sequence, shorter.shape["positions"], shorter.options["dropout"]) == (8, 16, 0.2)
    with pytest.raises(UsageError, match=r"17 .* 16"):
        ModelChoice(model=f"hf:{folder}", seq=17, dropout=0.0).resolve()


def test_the_command_refuses_a_folder_before_anything_starts(tmp_path: Path) -> None:
    folder = write(tmp_path / "in", LLAMA)
    options = ("--model", f"hf:{folder}", *ONE, "--out", str(tmp_path / "result.json"))

    def refusal(*words: str) -> str:
        codes, (said,) = train(1, *words)
        assert (codes, said.count("\n")) == ([2], 1)
        return said

    assert str(folder) in refusal(*options, "--export", str(folder))
    assert "--export DIR" in refusal("--model", "gpt-test", *options[2:], "--export", str(tmp_path / "new"))
    cut(folder, 5000)
    assert "5000 bytes" in refusal(*options)
    assert not (tmp_path / "result.json").exists()
