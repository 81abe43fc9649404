"""Configurations of networks, and small folders as transformers and diffusers write them, made without these."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from engine import yaml_text
from engine.models.adapters.adapter import ADAPTERS
from engine.models.adapters.options import Options

CONFIGURATIONS: dict[str, Any] = yaml_text.parse(Path(__file__).with_name("configurations.yaml").read_text())
"""Configurations of networks, as config.json has them."""
LLAMA, GPT2, NEOX, BERT, UNET = CONFIGURATIONS["small"].values()


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
