"""Folders as transformers and diffusers write them, small and without these: config.json and safetensors with drawn
weights.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine.models.adapters.adapter import ADAPTERS
from engine.models.adapters.options import Options

LLAMA: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 24, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 16, "tie_word_embeddings": True, "rope_theta": 500.0, "torch_dtype": "bfloat16",
}  # fmt: skip
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 16,
    "n_ctx": 16,
    "vocab_size": 24,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
NEOX: dict[str, Any] = {
    "model_type": "gpt_neox",
    "architectures": ["GPTNeoXForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 24,
    "max_position_embeddings": 16,
    "rotary_pct": 0.5,
    "rotary_emb_base": 10000,
    "use_parallel_residual": True,
}
BERT: dict[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 24,
    "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
UNET: dict[str, Any] = {
    "_class_name": "UNet2DModel",
    "_diffusers_version": "0.0.4",
    "sample_size": 8,
    "block_out_channels": [32, 64],
    "layers_per_block": 1,
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
    "attention_head_dim": 16,
    "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
}


def write(folder: Path, config: dict[str, Any], *, dtype: torch.dtype = torch.float32, files: int = 1) -> Path:
    """Write a folder as files of old are: with constants, a second copy of a tied table and old names of layers."""
    kind = config.get("model_type") or config["_class_name"]
    adapter = ADAPTERS[kind]
    stored = adapter.stored(adapter.read(Options("a test", config), "test", None, 0.0))
    generator = torch.Generator().manual_seed(1)
    in_files = {network: name for name, network in adapter.in_files.items()}
    tensors = {
        in_files.get(name, name): torch.randn(shape, generator=generator).mul(0.1).to(dtype)
        for name, shape in stored.shapes.items()
    }
    tensors |= {second: tensors[first].clone() for second, first in stored.aliases.items()}
    if kind == "gpt2":
        tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 16, 16, dtype=torch.bool).tril()
    if kind == "UNet2DModel":
        for old, new in adapter.parts_in_files.items():
            tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
    if kind == "bert":
        norms = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for new, old in norms.items():
            tensors = {name.replace(new, old): tensor for name, tensor in tensors.items()}
        tensors["bert.embeddings.position_ids"] = torch.arange(16)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    if files == 1:
        save_file(tensors, folder / f"{adapter.files}.safetensors", metadata={"format": "pt"})
        return folder
    names = sorted(tensors)
    where = {name: f"{adapter.files}-{i % files + 1:05}-of-{files:05}.safetensors" for i, name in enumerate(names)}
    for file in set(where.values()):
        save_file({name: tensors[name] for name in names if where[name] == file}, folder / file)
    (folder / f"{adapter.files}.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}
