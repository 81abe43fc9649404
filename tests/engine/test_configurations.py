"""Configurations as published networks have them, of both eras of transformers: what is read of them is what it reads.

Each is cut to a small width, with everything else as it is; version 5 of transformers wrote those it loads and saves.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from library_models import WideAlone, drawn
from pretrained_folders import CONFIGURATIONS
from safetensors.torch import save_file
from torch import Tensor, nn

from engine.errors import UsageError
from engine.grid import Coords, Grid
from engine.models.adapters.adapter import ADAPTERS
from engine.models.adapters.files import weights_of
from engine.models.adapters.folder import open_pretrained
from engine.models.adapters.options import Options
from engine.models.architecture import Architecture

if not find_spec("transformers"):
    pytest.skip("transformers is not installed: pip install '.[peers]'", allow_module_level=True)

PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    name: (CONFIGURATIONS["bases"][row["base"]] | row["config"], row["means"])
    for name, row in CONFIGURATIONS["published"].items()
}
"""Entries of the publisher's config.json, and their meaning."""
SMALL = {"intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 40, "max_window_layers": 2}
SMALL |= {"n_embd": 32, "n_head": 4, "n_layer": 2}
LENGTH = 24
TOLERANCE = 1e-10


def read(config: dict[str, Any]) -> Architecture:
    return ADAPTERS[config["model_type"]].read(Options("config.json", config), "test", None, 0.0)


def version_5(config: dict[str, Any]) -> dict[str, Any]:
    """Entries that transformers of today writes for the same model."""
    import transformers

    kind = transformers.AutoConfig.for_model(config["model_type"])
    found: dict[str, Any] = json.loads(type(kind)(**config).to_json_string(use_diff=False))
    return found


def small(config: dict[str, Any]) -> dict[str, Any]:
    """Keep the features of a head; let two heads share a key where the published ones do."""
    changed = {name: value for name, value in SMALL.items() if name in config}
    if "num_attention_heads" in config:
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        grouped = config.get("num_key_value_heads", 0) not in (0, config["num_attention_heads"])
        changed |= {"num_attention_heads": 4, "hidden_size": 4 * size}
        changed |= {"num_key_value_heads": 2 if grouped else 4} if "num_key_value_heads" in config else {}
    if "layer_types" in config:
        changed["layer_types"] = config["layer_types"][: SMALL["num_hidden_layers"]]
    return config | changed


def written(folder: Path, config: dict[str, Any]) -> nn.Module:
    """transformers' own network of a folder, in float64, with drawn weights that are written there."""
    import transformers

    (folder / "config.json").write_text(json.dumps(config))
    torch.set_default_dtype(torch.float64)
    try:
        with WideAlone():
            model = transformers.AutoModelForCausalLM.from_config(
                transformers.AutoConfig.from_pretrained(folder), dtype=torch.float64
            )
    finally:
        torch.set_default_dtype(torch.float32)
    drawn(model.eval())
    tied = set() if not model.config.tie_word_embeddings else {"lm_head.weight"}
    state = {name: value.contiguous() for name, value in model.state_dict().items() if name not in tied}
    save_file(state, folder / "model.safetensors")
    return model


def ours(folder: Path) -> nn.Module:
    """The engine's serial network with the weights of a folder."""
    pretrained = open_pretrained(folder, sequence=LENGTH, dropout=0.0)
    model = pretrained.architecture.serial().double().eval()
    with weights_of(pretrained) as loader, torch.no_grad():
        for name, placement in pretrained.architecture.placements().items():
            parameter = model.get_parameter(name)
            parameter.copy_(loader(placement, Grid(), Coords(0, 0, 0, 0), torch.float64).view_as(parameter))
    return model


def logits(model: nn.Module) -> Tensor:
    tokens = torch.randint(0, 40, (2, LENGTH), generator=torch.Generator().manual_seed(5))
    with WideAlone(), torch.no_grad():
        found = model(tokens)
    return found if isinstance(found, Tensor) else found.logits


@pytest.mark.parametrize("era", ["as published", "by version 5"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_is_the_network_that_transformers_makes_of_it(
    name: str, era: str, tmp_path: Path
) -> None:
    published, meant = PUBLISHED[name]
    config = published if era == "as published" else version_5(published)
    assert {key: getattr(read(config), key) for key in meant} == meant
    theirs = logits(written(tmp_path, small(config)))
    assert (logits(ours(tmp_path)) - theirs).abs().max().item() < TOLERANCE * theirs.abs().max().item()


@pytest.mark.parametrize(
    "name", [name for name, (_, meant) in PUBLISHED.items() if meant.get("rope_theta", 1e4) != 1e4]
)
def test_the_comparison_would_show_that_an_option_beside_rope_parameters_was_not_read(
    name: str, tmp_path: Path
) -> None:
    config = small(PUBLISHED[name][0])
    theirs = logits(written(tmp_path, config))
    for option in ("rope_theta", "rope_scaling", "rotary_emb_base", "rotary_pct", "partial_rotary_factor"):
        config.pop(option, None)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert (logits(ours(tmp_path)) - theirs).abs().max().item() > 1e5 * TOLERANCE * theirs.abs().max().item()


LLAMA2, LLAMA31, PYTHIA = "Llama-2-7b", "Llama-3.1-8B", "pythia-160m"
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
SCALED: dict[str, Any] = {**PUBLISHED[LLAMA31][0]["rope_scaling"]}
FULL = {"full_attention": {"rope_type": "default"}}
OTHER_SHARE = {"rope_type": "default", "partial_rotary_factor": 1.0}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (LLAMA2, {"rope_scaling": {"type": "linear", "factor": 8.0}}, "rope_scaling of .*rope_type='linear'"),
    (LLAMA2, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
    ("Qwen2.5-7B", {"rope_scaling": YARN}, "'yarn', .*'default' or 'llama3'"),
    ("Qwen2.5-7B", {"use_mrope": True}, "use_mrope=True"),
    (LLAMA31, {"rope_scaling": SCALED | {"low_freq_factor": 2.0}}, r"low_freq_factor=2\.0, .* 1\.0"),
    (LLAMA31, {"rope_scaling": SCALED | {"factor": None}}, "factor=None"),
    (LLAMA31, {"rope_scaling": SCALED | {"beta_fast": 32}}, "beta_fast=32"),
    (LLAMA31, {"rope_scaling": SCALED | {"type": "linear"}}, "rope_type='llama3' and type='linear'"),
    (
        LLAMA31,
        {"rope_scaling": None, "rope_parameters": SCALED | {"rope_theta": 1e4}},
        r"rope_theta=500000\.0 and rope_parameters\.rope_theta=10000\.0",
    ),
    (
        LLAMA31,
        {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
        "rope_parameters and rope_scaling",
    ),
    (LLAMA2, {"rope_theta": True}, "rope_theta=True, .* float"),
    (LLAMA2, {"rope_parameters": FULL}, "rope_parameters of .* full_attention="),
    (LLAMA2, {"rope_parameters": {"partial_rotary_factor": 0.5}}, r"partial_rotary_factor=0\.5"),
    (PYTHIA, {"rope_parameters": OTHER_SHARE}, r"partial_rotary_factor=1\.0 and rotary_pct=0\.25"),
    (PYTHIA, {"rope_theta": 500.0}, r"rope_theta=500\.0, .* 10000\.0"),
    (PYTHIA, {"rope_scaling": SCALED}, "rope_type llama3"),
    (PYTHIA, {"hidden_act": "gelu_fast"}, "hidden_act='gelu_fast'"),
    (LLAMA2, {"attention_bias": True}, "attention_bias=True, .* False"),
    ("Qwen2-0.5B", {"use_sliding_window": True, "sliding_window": 4096}, "use_sliding_window=True"),
]


@pytest.mark.parametrize(("name", "changed", "said"), REFUSED, ids=str)
def test_unknown_and_contradicting_positions_are_refused_by_name(name: str, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read(PUBLISHED[name][0] | changed)


def test_both_places_may_say_the_same() -> None:
    both = PUBLISHED[LLAMA31][0] | {"rope_parameters": SCALED, "rope_scaling": SCALED}
    assert (read(both).options["rope_theta"], read(both).options["rope_scaling"]) == (5e5, 8.0)


def test_mistral_is_refused_by_the_name_of_its_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral", "sliding_window": None}))
    with pytest.raises(UsageError, match="model_type 'mistral'"):
        open_pretrained(tmp_path)
