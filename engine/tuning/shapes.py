"""Which matrix products one rank of a run computes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from engine.grid import Grid
from engine.models.architecture import Architecture
from engine.models.serial import without_values


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """Of a linear layer on one rank: O [m, n] = I [m, k] W [k, n]."""

    m: int
    n: int
    k: int


@dataclass(slots=True)
class Products:
    """The layers of one shape, by their serial names.

    forwards: how often O is computed for each dI and dW: twice where activations are recomputed. movable: whether their
    weights may be stored column by column, which no embedding can look its rows up in.
    """

    shape: Shape
    forwards: int
    movable: bool
    layers: list[str] = field(default_factory=list)


def products(model: Architecture, grid: Grid, sequences: int, *, recompute: bool) -> list[Products]:
    """Of one micro-batch of so many sequences, largest first.

    Layers of one shape that differ in forwards or movable are apart.
    """
    serial = without_values(model, checkpoint_activations=recompute)
    modules, placements, ties = dict(serial.named_modules()), model.placements(), model.ties
    blocks = {id(module) for block in serial.blocks for module in block.modules()}
    looked_up = {_weight(name, ties) for name, module in modules.items() if isinstance(module, nn.Embedding)}
    found: dict[tuple[Shape, int, bool], Products] = {}
    for name, module in modules.items():
        if isinstance(module, nn.Linear):
            weight = _weight(name, ties)
            n, k = placements[weight].tile_shape(grid)
            key = (Shape(sequences * model.sequence, n, k), 2 if recompute and id(module) in blocks else 1)
            whole = (*key, weight not in looked_up)
            found.setdefault(whole, Products(*whole)).layers.append(name)
    return sorted(found.values(), key=lambda p: (p.shape.m * p.shape.n * p.shape.k, p.shape), reverse=True)


def _weight(layer: str, ties: Mapping[str, str]) -> str:
    return ties.get(f"{layer}.weight", f"{layer}.weight")
