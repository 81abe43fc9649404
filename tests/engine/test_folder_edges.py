"""What a network's folder says beside its weights: read and checked, refused by name, or named; no library needed."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pretrained_folders import CONFIGURATIONS

from engine.cli.main import main
from engine.errors import UsageError
from engine.models.adapters.folder import has_weights, list_unread, read_network
from engine.models.choice import ModelChoice

LLAMA, GPT2, BERT, VIT = CONFIGURATIONS["bare"].values()
SCALED = {"rope_type": "llama3", "factor": -8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def _folder(folder: Path, config: Mapping[str, Any], **files: object) -> Path:
    for name, content in {"config": config, **files}.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("config", "changed"),
    [
        *((LLAMA, {"rms_norm_eps": value}) for value in (0.0, -1e-5, float("nan"), float("inf"), "1e-5")),
        *((LLAMA, {"rope_theta": value}) for value in (0, -5e5, float("nan"))),
        *((LLAMA, {"hidden_size": value}) for value in (0, -64, 2**80, 64.5, None, "64")),
        *((LLAMA, {"num_hidden_layers": value}) for value in (0, 10**9)),
        (LLAMA, {"rope_scaling": SCALED | {"original_max_position_embeddings": 8192}}),
        *(
            (LLAMA, {"layer_types": kinds})
            for kinds in (["full_attention"], 31 * ["full_attention"] + ["sliding_attention"])
        ),
        (LLAMA, {"num_key_value_heads": 0}),
        (LLAMA, {"num_attention_heads": 0}),
        (LLAMA, {"vocab_size": -1}),
        (LLAMA, {"max_position_embeddings": 0}),
        (LLAMA, {"pad_token_id": 10**9}),
        *((GPT2, {"resid_pdrop": value, "embd_pdrop": value}) for value in (1.0, -0.1, float("nan"))),
        (GPT2, {"attn_pdrop": 1.5}),
        (GPT2, {"layer_norm_epsilon": -1.0}),
        (BERT, {"hidden_dropout_prob": 7.0}),
        (BERT, {"layer_norm_eps": -1e-12}),
        (VIT, {"patch_size": 0}),
        (VIT, {"image_size": 33}),
        (VIT, {"hidden_dropout_prob": -1.0}),
    ],
    ids=str,
)
def test_a_value_out_of_its_range_is_refused_with_the_file(
    config: Mapping[str, Any], changed: Mapping[str, object], tmp_path: Path
) -> None:
    read_network(_folder(tmp_path, config))
    with pytest.raises(UsageError, match=r"config\.json"):
        read_network(_folder(tmp_path, {**config, **changed}))


PROCESSOR: dict[str, Any] = {"do_normalize": True, "do_rescale": True, "do_resize": True, "resample": 2}
PROCESSOR |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "rescale_factor": 1 / 255}
PROCESSOR |= {"size": {"height": 32, "width": 32}}


@pytest.mark.parametrize("changed", [{}, {"size": 32}, {"image_mean": 0.5}, {"resample": 3}])
def test_colours_as_images_have_them_here_are_taken(changed: Mapping[str, object], tmp_path: Path) -> None:
    read_network(_folder(tmp_path, VIT, preprocessor_config=PROCESSOR | changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"image_mean": [0.485, 0.456, 0.406]},
        {"image_std": [0.229, 0.224, 0.225]},
        {"image_mean": []},
        {"image_mean": "x"},
        {"do_normalize": False},
        {"do_rescale": False},
        {"rescale_factor": 1.0},
        {"size": {"height": 64, "width": 64}},
        {"size": {"shortest_edge": 16}},
        {"size": 224},
    ],
    ids=str,
)
def test_a_network_that_has_learnt_from_other_colours_is_refused(changed: Mapping[str, object], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"preprocessor_config\.json has {next(iter(changed))}="):
        read_network(_folder(tmp_path, VIT, preprocessor_config=PROCESSOR | changed))


def test_what_is_copied_and_never_read_is_named(tmp_path: Path) -> None:
    _folder(tmp_path, VIT, preprocessor_config=PROCESSOR, generation_config={}, tokenizer={}, vocab={})
    for name in ("README.md", "model.safetensors.index.json", "chat_template.jinja", "pytorch_model.bin"):
        (tmp_path / name).write_text("{}")
    assert list_unread(tmp_path) == ["README.md", "chat_template.jinja", "generation_config.json"]


def test_a_plan_and_a_check_need_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _folder(tmp_path, LLAMA)
    assert not has_weights(folder)
    assert ModelChoice(model=f"hf:{folder}").resolve().parameters == 8_030_261_248
    run = ("--model", f"hf:{folder}", "--batch-size", "64", "--data", "synthetic", "--precision", "bf16")
    assert main(["check", *run, "--grid", "8x1x1x8", "--ranks", "64"]) == 0
    assert f"{folder} has no weights" in capsys.readouterr().err
    assert main(["train", *run]) == 2
    assert "model.safetensors" in capsys.readouterr().err


def test_an_index_of_weights_that_are_all_to_come_is_none(tmp_path: Path) -> None:
    shard = tmp_path / "model-00001-of-00002.safetensors"
    folder = _folder(tmp_path, LLAMA, **{"model.safetensors.index": {"weight_map": {"a": shard.name}}})
    assert not has_weights(folder)
    assert ModelChoice(model=f"hf:{folder}").resolve().parameters == 8_030_261_248
    shard.touch()
    assert has_weights(folder)
    shard.unlink()
    with pytest.raises(UsageError, match=re.escape(shard.name)):
        ModelChoice(model=f"hf:{folder}").pretrained()
