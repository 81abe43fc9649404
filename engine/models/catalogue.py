"""Catalogue of all families of networks, and of their named sizes. No torch."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from engine import yaml_text
from engine.errors import UsageError, nearest
from engine.models.architecture import Architecture
from engine.models.bert.config import BertConfig
from engine.models.gpt.config import GPTConfig
from engine.models.llama.config import LlamaConfig
from engine.models.unet.config import UNetConfig
from engine.models.vit.config import ViTConfig

FAMILIES: Mapping[str, Callable[..., Architecture]] = MappingProxyType(
    {kind.family: kind for kind in (GPTConfig, LlamaConfig, BertConfig, ViTConfig, UNetConfig)}
)


@cache
def published() -> Mapping[str, Architecture]:
    """Read every named size, by name; a family's are in its sizes.yaml."""
    sizes: dict[str, Architecture] = {}
    for family, make in FAMILIES.items():
        for group in yaml_text.parse((Path(__file__).parent / family / "sizes.yaml").read_text()):
            models = group.pop("models")
            sizes |= {name: make(**({"name": name} | group | shape)) for name, shape in models.items()}
    return MappingProxyType(sizes)


def lookup(name: str) -> Architecture:
    """Find the size of that name, whatever its case. Raises UsageError with the nearest names."""
    sizes = published()
    if name.lower() not in sizes:
        raise UsageError(f"No model is called {name!r}: {nearest(name, sizes)}")
    return sizes[name.lower()]
