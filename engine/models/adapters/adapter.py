"""Adapters read a library's network as one of the engine's. Neither torch nor the library is loaded.

networks.yaml has a row for each network, and explains its keys; readers.py has what a row can't say. What no adapter
knows, an option, a module, a tensor, is refused by name: nothing is run wrong.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from engine import yaml_text
from engine.data import CHANNELS
from engine.errors import UsageError
from engine.models.adapters import readers
from engine.models.adapters.options import Options
from engine.models.adapters.stored import Index, Names, Stored, halves, stored
from engine.models.architecture import Architecture
from engine.models.catalogue import FAMILIES
from engine.models.unet.config import UNetConfig

ACTIVATIONS = {"gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
READERS: Mapping[str, Callable[[Options, readers.Fields], readers.Fields]] = {
    **dict.fromkeys(("llama", "qwen2", "qwen3"), readers.read_llama),
    "gpt_neox": readers.read_neox,
    "bert": readers.read_bert,
    "vit": readers.read_vit,
    "UNet2DModel": readers.read_unet,
    "litgpt": readers.read_litgpt,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """How a library configures and stores networks of one of the engine's families: see networks.yaml."""

    fields: Mapping[str, str | Mapping[str, Any]]
    values: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    refuses_none: bool = False
    disabled: Sequence[str] = ()
    forget: Sequence[str] = ()
    dropout: Mapping[str, Any] | None = None
    names: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    transposed_blocks: bool = False
    by_head: bool = False

    def read(self, options: Options, dropout: float | None) -> readers.Fields:
        """Read what the table says of an architecture's fields. Raises UsageError for options that it doesn't allow."""
        for option, value in self.fixed.items():
            if self.refuses_none and value is not None and options.is_none(option):
                raise options.refusal(f"{option}=None", repr(value))
            options.require(option, value, default=value)
        options.require_off(*self.disabled)
        options.forget(*self.forget)
        fields = {name: _read(options, rule) for name, rule in self.fields.items()} | dict(self.values)
        if self.dropout is not None:
            rate = options.dropout(**self.dropout, override=dropout)
            if self.dropout["names"]:
                fields["dropout"] = rate
            elif rate:
                raise options.refusal(f"dropout {rate}", "none")
        return fields


def _read(options: Options, rule: str | Mapping[str, Any]) -> Any:
    if isinstance(rule, str):
        return options.take(rule)
    ((option, default),) = rule.items()
    match default:
        case None:
            return options.given(option, 1)
        case float():
            return options.positive(option, default)
        case str():
            return options.one_of(option, ACTIVATIONS, default)
        case _:
            return options.take(option, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A network of a library, and how it becomes one of the engine's: see networks.yaml."""

    model_type: str
    package: str
    network: str
    attention: str
    modules: Sequence[str]
    tables: Mapping[str, Table]
    files: str = "model"
    prefix: str = ""
    in_files: Mapping[str, str] = field(default_factory=dict)
    parts_in_files: Mapping[str, str] = field(default_factory=dict)
    constants: Sequence[str] = ()
    scheduler: Sequence[str] = ()

    @property
    def title(self) -> str:
        """Name of the network in error messages."""
        return f"{self.package}' {self.network}" if self.package.endswith("s") else f"{self.package}'s {self.network}"

    def read(self, options: Options, name: str, sequence: int | None, dropout: float | None) -> Architecture:
        """Read a configuration. sequence, dropout: other than configured. Raises UsageError for what isn't known."""
        family = next(iter(self.tables))
        if len(self.tables) > 1:  # litgpt's GPT, whose norm tells Llama and its kin from GPT-NeoX
            family = "llama" if options.take("norm_class_name", "LayerNorm") == "RMSNorm" else "gpt"
        fields = self.tables[family].read(options, dropout)
        if self.model_type in READERS:
            fields |= READERS[self.model_type](options, fields)
        longest = fields.get("sequence", fields.get("positions"))
        if longest is not None:
            fields["sequence"] = sequence or longest
        elif sequence is not None:
            raise UsageError(f"{name} takes images, whose size gives its sequence: leave --seq out.")
        options.finish()
        return FAMILIES[family](name=name, **fields)

    def stored(self, architecture: Architecture) -> Stored:
        """Find where the library keeps a network's parameters."""
        table = self.tables[architecture.family]
        if isinstance(architecture, UNetConfig):
            return stored(architecture, _unet_names(architecture))
        names: Names = {
            layer: paths if isinstance(paths, str) else list(zip(paths, _rows(architecture, layer, table), strict=True))
            for layer, paths in table.names.items()
            if isinstance(paths, str) or _has(architecture, layer)
        }
        places = stored(architecture, names, transposed_blocks=table.transposed_blocks)
        match self.model_type:
            case "bert":  # whose head's bias is a parameter beside it, too
                places = places.kept_as("head.bias", "cls.predictions.bias")
                return places.also_called("cls.predictions.decoder.bias", "cls.predictions.bias")
            case "vit":  # whose patches are a convolution, and tables without a layer
                return _kept_as_images(places, architecture, "vit.embeddings")
            case _:
                return places


def _has(architecture: Architecture, layer: str) -> bool:
    """Return whether a layer whose rows are to be ordered is of this network, not of another that the table is for."""
    return architecture.family == "llama" or layer == "attention.qkv"


def _rows(shape: Any, layer: str, table: Table) -> list[Index]:
    """Order the library's rows as the engine has them, for each of the paths at which a layer is stored.

    shape: a transformer. Rotary pairs are neighbours here, and lie in the halves of a head there.
    """
    size, turned = shape.head_size, getattr(shape, "rotary_features", 0)
    if layer in ("attention.norm_q", "attention.norm_k"):
        return [halves(1, size, turned)]
    if layer == "feed_forward.gate_up":
        return [np.arange(shape.ffn)] * 2
    heads, kv_heads = shape.heads, getattr(shape, "kv_heads", shape.heads)
    if table.by_head:
        first = halves(heads, size, turned, apart=3 * size)
        straight = halves(heads, size, 0, apart=3 * size)
        return [np.concatenate([first, first + size, straight + 2 * size])]
    query, key, value = halves(heads, size, turned), halves(kv_heads, size, turned), np.arange(kv_heads * size)
    if len(table.names[layer]) == 1:
        return [np.concatenate([query, len(query) + key, len(query) + len(key) + value])]
    return [query, key, value]


def _kept_as_images(places: Stored, shape: Any, tables: str) -> Stored:
    pixels = (shape.hidden, CHANNELS, shape.patch, shape.patch)
    places = places.kept_as("patches.weight", f"{tables}.patch_embeddings.projection.weight", pixels)
    places = places.kept_as("class_token.weight", f"{tables}.cls_token", (1, 1, shape.hidden))
    return places.kept_as("positions.weight", f"{tables}.position_embeddings", (1, shape.sequence, shape.hidden))


def _unet_names(shape: UNetConfig) -> Names:
    """Name the layers of a UNet2DModel, which has them by level, and keeps query, key and value apart."""
    names: dict[str, str | Sequence[tuple[str, Index]]] = {
        "time.fc1": "time_embedding.linear_1",
        "time.fc2": "time_embedding.linear_2",
        "conv_in": "conv_in",
        "norm": "conv_norm_out",
        "conv_out": "conv_out",
    }
    for number, (step, path) in enumerate(zip(shape.steps, _unet_paths(shape), strict=True)):
        attention, block = path.replace("resnets", "attentions"), f"blocks.{number}"
        names |= {
            f"{block}.residual.norm1": f"{path}.norm1",
            f"{block}.residual.conv1": f"{path}.conv1",
            f"{block}.residual.embedding": f"{path}.time_emb_proj",
            f"{block}.residual.norm2": f"{path}.norm2",
            f"{block}.residual.conv2": f"{path}.conv2",
            f"{block}.residual.skip": f"{path}.conv_shortcut",
            f"{block}.resampling.conv": f"{path}.conv",
            f"{block}.attention.norm": f"{attention}.group_norm",
            f"{block}.attention.attention.qkv": [(f"{attention}.to_{one}", np.arange(step.channels)) for one in "qkv"],
            f"{block}.attention.attention.out": f"{attention}.to_out.0",
        }
    return names


def _unet_paths(shape: UNetConfig) -> Iterator[str]:
    """Name the residual block of each step, or its convolution."""
    levels = len(shape.multipliers)
    for level in range(levels):
        yield from (f"down_blocks.{level}.resnets.{number}" for number in range(shape.depth))
        yield from (f"down_blocks.{level}.downsamplers.0" for _ in range(level < levels - 1))
    yield from ("mid_block.resnets.0", "mid_block.resnets.1")
    for level in range(levels):
        yield from (f"up_blocks.{level}.resnets.{number}" for number in range(shape.depth + 1))
        yield from (f"up_blocks.{level}.upsamplers.0" for _ in range(level < levels - 1))


def _load() -> Mapping[str, Adapter]:
    rows = yaml_text.parse((Path(__file__).parent / "networks.yaml").read_text())
    for row in rows.values():
        row["tables"] = {family: Table(**table) for family, table in row["tables"].items()}
    return {model_type: Adapter(model_type=model_type, **row) for model_type, row in rows.items()}


ADAPTERS = _load()
"""Every adapter, by the model_type, or _class_name, of its config.json; litgpt's files have none."""
