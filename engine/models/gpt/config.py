"""Serial reference networks in plain PyTorch, and the published sizes as data (sizes.yaml)."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import yaml

from engine.errors import UsageError, nearest


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """The shape of a GPT. hidden must be a multiple of heads; feed-forward width is 4 * hidden."""

    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    bias: bool = True
    tied: bool = False
    norm: str = "layernorm"
    dropout: float = 0.0
    nominal: float | None = None
    source: str = "given by the user"

    def __post_init__(self) -> None:
        for key in ("layers", "hidden", "heads", "vocabulary", "sequence"):
            if getattr(self, key) < 1:
                raise UsageError(f"A model's {key} must be at least 1, but {getattr(self, key)} was given.")
        if self.hidden % self.heads:
            raise UsageError(
                f"A model's hidden size must be a multiple of its heads, but {self.hidden} is not a multiple of "
                f"{self.heads}; {self.heads * (self.hidden // self.heads + 1)} would be."
            )
        if self.norm not in ("layernorm", "rmsnorm"):
            raise UsageError(f"A model's norm is layernorm or rmsnorm, but {self.norm!r} was given.")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"Dropout is a probability from 0 to below 1, but {self.dropout} was given.")

    @property
    def parameters(self) -> int:
        """Number of parameters, every embedding, bias and norm counted once."""
        h, bias = self.hidden, int(self.bias)
        norm = h * (2 if self.norm == "layernorm" else 1)
        block = 12 * h * h + bias * 9 * h + 2 * norm
        head = 0 if self.tied else self.vocabulary * h
        return self.layers * block + norm + (self.vocabulary + self.sequence) * h + head


@cache
def published() -> dict[str, GPTConfig]:
    """Every named size, by name."""
    sizes: dict[str, GPTConfig] = {}
    for family in yaml.safe_load(Path(__file__).with_name("sizes.yaml").read_text()):
        models = family.pop("models")
        for name, shape in models.items():
            sizes[name] = GPTConfig(**({"name": name} | family | shape))
    return sizes


def lookup(name: str) -> GPTConfig:
    """The size of that name, whatever its case. Raises UsageError with the nearest names."""
    sizes = published()
    if name.lower() not in sizes:
        raise UsageError(f"No model is called {name!r}: {nearest(name, sizes)}")
    return replace(sizes[name.lower()])
