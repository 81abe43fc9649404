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

TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "use_cache": True, "initializer_range": 0.02}
LLAMA = TOKENS | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu"}
QWEN = TOKENS | {"hidden_act": "silu", "attention_dropout": 0.0, "rms_norm_eps": 1e-6}
QWEN2 = QWEN | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False}
QWEN3 = QWEN | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "use_sliding_window": False}
NEOX = TOKENS | {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "use_parallel_residual": True}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}

PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Llama-2-7b": (
        LLAMA | {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
        | {"num_key_value_heads": 32, "max_position_embeddings": 4096, "vocab_size": 32000, "rms_norm_eps": 1e-5}
        | {"pretraining_tp": 1, "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "float16"},
        {"rope_theta": 1e4, "rope_scaling": 1.0, "head_size": 128, "kv_heads": 32, "norm_eps": 1e-5, "tied": False},
    ),
    "CodeLlama-7b": (
        LLAMA | {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
        | {"num_key_value_heads": 32, "max_position_embeddings": 16384, "vocab_size": 32016, "rms_norm_eps": 1e-5}
        | {"pretraining_tp": 1, "rope_scaling": None, "rope_theta": 1000000, "torch_dtype": "bfloat16"},
        {"rope_theta": 1e6, "rope_scaling": 1.0, "sequence": 16384, "tied": False},
    ),
    "Meta-Llama-3-8B": (
        LLAMA | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "max_position_embeddings": 8192, "vocab_size": 128256, "rms_norm_eps": 1e-5}
        | {"pretraining_tp": 1, "rope_scaling": None, "rope_theta": 500000.0, "tie_word_embeddings": False}
        | {"attention_bias": False, "attention_dropout": 0.0, "torch_dtype": "bfloat16"},
        {"rope_theta": 5e5, "rope_scaling": 1.0, "kv_heads": 8, "vocabulary": 128256},
    ),
    "Llama-3.1-8B": (
        LLAMA | {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "max_position_embeddings": 131072, "vocab_size": 128256, "rms_norm_eps": 1e-5}
        | {"rope_scaling": LLAMA3 | {"rope_type": "llama3"}, "rope_theta": 500000.0, "tie_word_embeddings": False}
        | {"attention_bias": False, "attention_dropout": 0.0, "mlp_bias": False, "pretraining_tp": 1}
        | {"eos_token_id": [1, 2], "torch_dtype": "bfloat16", "transformers_version": "4.42.3"},
        {"rope_theta": 5e5, "rope_scaling": 8.0, "sequence": 131072, "tied": False},
    ),
    "Llama-3.2-1B": (
        LLAMA | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072, "vocab_size": 128256}
        | {"rope_scaling": LLAMA3 | {"factor": 32.0, "rope_type": "llama3"}, "rope_theta": 500000.0}
        | {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False},
        {"rope_theta": 5e5, "rope_scaling": 32.0, "head_size": 64, "tied": True},
    ),
    "SmolLM2-135M": (
        LLAMA | {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
        | {"num_key_value_heads": 3, "max_position_embeddings": 8192, "vocab_size": 49152, "rms_norm_eps": 1e-5}
        | {"is_llama_config": True, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000}
        | {"tie_word_embeddings": True, "pretraining_tp": 1, "torch_dtype": "bfloat16"},
        {"rope_theta": 1e5, "heads": 9, "kv_heads": 3, "tied": True},
    ),
    "Qwen2-0.5B": (
        QWEN2 | {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14}
        | {"num_key_value_heads": 2, "max_position_embeddings": 131072, "vocab_size": 151936, "max_window_layers": 24}
        | {"rope_theta": 1000000.0, "sliding_window": 131072, "tie_word_embeddings": True, "torch_dtype": "bfloat16"},
        {"rope_theta": 1e6, "qkv_bias": True, "tied": True, "norm_eps": 1e-6},
    ),
    "Qwen2.5-7B": (
        QWEN2 | {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
        | {"num_key_value_heads": 4, "max_position_embeddings": 131072, "vocab_size": 152064, "max_window_layers": 28}
        | {"rope_theta": 1000000.0, "sliding_window": 131072, "use_mrope": False, "tie_word_embeddings": False},
        {"rope_theta": 1e6, "qkv_bias": True, "tied": False, "kv_heads": 4},
    ),
    "Qwen3-0.6B": (
        QWEN3 | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
        | {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40960, "vocab_size": 151936}
        | {"attention_bias": False, "max_window_layers": 28, "rope_scaling": None, "rope_theta": 1000000}
        | {"sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16"},
        {"rope_theta": 1e6, "qk_norm": True, "qkv_bias": False, "head_size": 128, "tied": True},
    ),
    "pythia-160m": (
        NEOX | {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
        | {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "max_position_embeddings": 2048, "rotary_emb_base": 10000}
        | {"rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16", "vocab_size": 50304},
        {"rope_theta": 1e4, "rotary": 16, "parallel_residual": True, "activation": "gelu", "tied": False},
    ),
    "pythia-like of late version 4": (
        NEOX | {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
        | {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "max_position_embeddings": 8192, "rotary_emb_base": 40000}
        | {"rotary_pct": 0.5, "rope_theta": 40000, "partial_rotary_factor": 0.5, "rope_scaling": None}
        | {"use_parallel_residual": False, "attention_bias": True, "vocab_size": 50304},
        {"rope_theta": 4e4, "rotary": 32, "parallel_residual": False},
    ),
    "gpt2": (
        TOKENS | {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new"}
        | {"attn_pdrop": 0.1, "embd_pdrop": 0.1, "resid_pdrop": 0.1, "layer_norm_epsilon": 1e-5, "n_ctx": 1024}
        | {"n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257}
        | {"summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True}
        | {"summary_type": "cls_index", "summary_use_proj": True}
        | {"task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}},
        {"positions": 1024, "activation": "gelu_tanh", "tied": True, "rotary": None, "heads": 12},
    ),
}  # fmt: skip
"""By name: of config.json what the publisher wrote there, and what that means."""
SMALL = {"intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 40, "max_window_layers": 2}
SMALL |= {"n_embd": 32, "n_head": 4, "n_layer": 2}
LENGTH = 24
TOLERANCE = 1e-10


def read(config: dict[str, Any]) -> Architecture:
    return ADAPTERS[config["model_type"]].read(Options("config.json", config), "test", None, 0.0)


def version_5(config: dict[str, Any]) -> dict[str, Any]:
    """What transformers of today makes of it and writes."""
    import transformers

    kind = transformers.AutoConfig.for_model(config["model_type"])
    found: dict[str, Any] = json.loads(type(kind)(**config).to_json_string(use_diff=False))
    return found


def small(config: dict[str, Any]) -> dict[str, Any]:
    """Of as many features a head, two of which share a key where the published ones share."""
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


LLAMA2, LLAMA31, PYTHIA = (PUBLISHED[name][0] for name in ("Llama-2-7b", "Llama-3.1-8B", "pythia-160m"))
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
SCALED = LLAMA3 | {"rope_type": "llama3"}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "linear": (LLAMA2 | {"rope_scaling": {"type": "linear", "factor": 8.0}}, "rope_scaling of .*rope_type='linear'"),
    "dynamic": (LLAMA2 | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "has rope_type='dynamic', which"),
    "yarn": (PUBLISHED["Qwen2.5-7B"][0] | {"rope_scaling": YARN}, "'yarn', .*: only 'default' or 'llama3' can"),
    "mrope": (PUBLISHED["Qwen2.5-7B"][0] | {"use_mrope": True}, "has use_mrope=True, which can't be trained here"),
    "other llama3": (LLAMA31 | {"rope_scaling": SCALED | {"low_freq_factor": 2.0}}, "low_freq_factor=2.0, .*only 1.0"),
    "no factor": (LLAMA31 | {"rope_scaling": SCALED | {"factor": None}}, "has factor=None, .* only a number can"),
    "more": (LLAMA31 | {"rope_scaling": SCALED | {"beta_fast": 32}}, "has beta_fast=32, an option that no"),
    "two kinds": (
        LLAMA31 | {"rope_scaling": SCALED | {"type": "linear"}},
        "has rope_type='llama3' and type='linear', which contradict each other",
    ),
    "two thetas": (
        LLAMA31 | {"rope_scaling": None, "rope_parameters": SCALED | {"rope_theta": 1e4}},
        r"has rope_theta=500000.0 and rope_parameters.rope_theta=10000.0, which contradict each other: keep the one",
    ),
    "two places": (
        LLAMA31 | {"rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}},
        "has rope_parameters and rope_scaling, which contradict each other",
    ),
    "true": (LLAMA2 | {"rope_theta": True}, "has rope_theta=True, but that is to be of type float: correct it"),
    "of layers": (
        LLAMA2 | {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        "rope_parameters of .* has full_attention=.*, an option that no adapter knows",
    ),
    "llama in part": (LLAMA2 | {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5, w"),
    "two shares": (
        PYTHIA | {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}},
        "has rope_parameters.partial_rotary_factor=1.0 and rotary_pct=0.25, which contradict",
    ),
    "two bases": (PYTHIA | {"rope_theta": 500.0}, "has rope_theta=500.0, which .*: only 10000.0 can"),
    "pythia scaled": (PYTHIA | {"rope_scaling": SCALED}, "positions of rope_type llama3, which can't"),
    "gelu_fast": (PYTHIA | {"hidden_act": "gelu_fast"}, "has hidden_act='gelu_fast', which can't be trained here"),
    "biases": (LLAMA2 | {"attention_bias": True}, "has attention_bias=True, which .*: only False can"),
    "window": (
        PUBLISHED["Qwen2-0.5B"][0] | {"use_sliding_window": True, "sliding_window": 4096},
        "has use_sliding_window=True, which can't be trained here",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_positions_that_the_engine_has_not_or_that_contradict_each_other_are_refused_by_name(what: str) -> None:
    config, said = REFUSED[what]
    with pytest.raises(UsageError, match=said):
        read(config)


def test_both_places_may_say_the_same() -> None:
    both = LLAMA31 | {"rope_parameters": SCALED, "rope_scaling": SCALED}
    assert (read(both).options["rope_theta"], read(both).options["rope_scaling"]) == (5e5, 8.0)


def test_mistral_is_refused_by_the_name_of_its_type(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mistral", "sliding_window": None}))
    with pytest.raises(UsageError, match="No adapter knows the model_type 'mistral' of"):
        open_pretrained(tmp_path)
