"""Which matrix products one rank of a run computes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from engine.grid import Grid
from engine.layers.matmul import gradient_dtype
from engine.models.architecture import Architecture
from engine.models.serial import without_values
from engine.precision import Precision


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """Of a linear layer on one rank: O [m, n] = I [m, k] W [k, n]."""

    m: int
    n: int
    k: int


@dataclass(frozen=True, slots=True)
class Job:
    """What of a run the products of its ranks depend on, besides the network.

    sequences: of a micro-batch, and micro_batches: of a step. recompute: whether blocks' activations are.
    """

    grid: Grid
    sequences: int
    precision: Precision
    device: torch.device
    micro_batches: int = 1
    recompute: bool = False


@dataclass(slots=True)
class Products:
    """The layers of one shape, by their serial names.

    forwards: how often O is computed for each dI and dW: twice where activations are recomputed. movable: whether their
    weights may be stored column by column, which no embedding can look its rows up in. bias: whether O's product adds
    it. accumulates: whether dW's product adds to what is there, as it does from the second micro-batch on. widened:
    whether dW comes out in the masters' format.
    """

    shape: Shape
    forwards: int
    movable: bool
    bias: bool = False
    accumulates: bool = False
    widened: bool = False
    layers: list[str] = field(default_factory=list)


def products(model: Architecture, job: Job) -> list[Products]:
    """Of one micro-batch, largest first. Layers of one shape of which anything else differs are apart.

    With several micro-batches it is one after the first.
    """
    grid = job.grid
    serial = without_values(model, checkpoint_activations=job.recompute)
    modules, placements, ties = dict(serial.named_modules()), model.placements(), model.ties
    blocks = {id(module) for block in serial.blocks for module in block.modules()}
    looked_up = {_weight(name, ties) for name, module in modules.items() if isinstance(module, nn.Embedding)}
    compute, master = job.precision.compute, job.precision.master
    gradient = gradient_dtype(compute, master, job.device, z=grid.z)
    accumulates = job.micro_batches > 1 and grid.z == 1 and gradient == master
    found: dict[tuple[Shape, int, bool, bool], Products] = {}
    for name, module in modules.items():
        if isinstance(module, nn.Linear):
            weight = _weight(name, ties)
            placement = placements[weight]
            n, k = placement.tile_shape(grid)
            in_axis = placement.split[1]
            forwards = 2 if job.recompute and id(module) in blocks else 1
            bias = module.bias is not None and (in_axis is None or grid[in_axis] == 1)
            key = (Shape(job.sequences * model.sequence, n, k), forwards, weight not in looked_up, bias)
            found.setdefault(key, Products(*key, accumulates, gradient != compute)).layers.append(name)
    return sorted(found.values(), key=lambda p: (p.shape.m * p.shape.n * p.shape.k, p.shape), reverse=True)


def _weight(layer: str, ties: Mapping[str, str]) -> str:
    return ties.get(f"{layer}.weight", f"{layer}.weight")
