"""Matrix products that one rank of a run computes.

Convolutions are none, of single pixels neither: PyTorch's kernels take images as they are (layers/conv2d.py).
"""

from dataclasses import dataclass, field

import torch

from engine.grid import Grid
from engine.layers.matmul import gradient_dtype
from engine.models.image_operations import Conv2d
from engine.models.operations import Linear, Table
from engine.precision import Precision
from engine.training_record import Training


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """Shape of a linear layer on one rank: O [m, n] = I [m, k] W [k, n]."""

    m: int
    n: int
    k: int


@dataclass(slots=True)
class Products:
    """Layers of one shape."""

    shape: Shape
    forwards: int
    """How often O is computed for each dI and dW: twice where activations are recomputed."""
    movable: bool
    """Whether weights may be stored column by column, which no embedding can look its rows up in."""
    bias: bool = False
    """Whether O's product adds it."""
    accumulates: bool = False
    """Whether dW's product adds to what is there, as it does from the second micro-batch on."""
    widened: bool = False
    """Whether dW comes out in the masters' format."""
    layers: list[str] = field(default_factory=list)
    """Serial names."""


def products(training: Training, grid: Grid, device: torch.device) -> list[Products]:
    """List the products of one micro-batch, largest first. Layers of one shape of which anything else differs are
    apart.

    Where there are several micro-batches, the products are those of one after the first.
    """
    network, sequence, batch = training.model.network(), training.model.sequence, training.batch
    of_grid = training.mode(grid, network)
    precision = Precision.parse(*training.formats)
    looked_up = {table.name for section in network.sections for table in section.of_kind(Table)}
    compute, kept = precision.compute, precision.gradient
    gradient = gradient_dtype(compute, kept, device, shards=grid.shards)
    accumulates = batch.at_once(grid) < batch.per_rank(grid) and grid.shards == 1 and gradient == kept
    found: dict[tuple[Shape, int, bool, bool], Products] = {}
    run_twice = {id(section): again for section, again in network.run_twice(training.recomputed_blocks)}
    for section, number in network.repeats():
        mode = of_grid.whole if section.whole else of_grid
        forwards = 2 if number < run_twice[id(section)] else 1
        for linear in (linear for linear in section.of_kind(Linear) if not isinstance(linear, Conv2d)):
            name = f"{section.prefix(number)}{linear.name}"
            (n, k), in_axis = linear.tile_shape(grid, mode), mode.axis(linear.sides[1])
            shape = Shape(batch.at_once(grid) * section.tokens_of(linear, sequence), n, k)
            key = (
                shape,
                forwards,
                linear.tied not in looked_up,
                linear.bias and not mode.splits_rows and (in_axis is None or grid[in_axis] == 1),
            )
            found.setdefault(key, Products(*key, accumulates, gradient != compute)).layers.append(name)
    return sorted(found.values(), key=lambda p: (p.shape.m * p.shape.n * p.shape.k, p.shape), reverse=True)
