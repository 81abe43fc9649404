"""parallelize: turns a serial model into the 4D one, layer by layer, by the placements of its parameters.

Activations stay split through the whole network. Weights are created shard by shard: no rank ever holds more than its
own tile (x, y) of one.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import nn

from engine.comm.funnel import Comm
from engine.grid import STREAM
from engine.layers.dropout import Dropout
from engine.layers.elementwise import GELU, AddNorm, Rotate, SwiGLU
from engine.layers.embedding import PositionEmbedding, TokenEmbedding
from engine.layers.fused import FusedAddNorm, FusedGELU, FusedRotate, FusedSwiGLU
from engine.layers.linear import Linear
from engine.layers.loss import CrossEntropy
from engine.layers.matmul import PLAIN, Kernels
from engine.layers.norm import HeadNorm, LayerNorm, RMSNorm
from engine.models.adapters.library import adapt
from engine.models.adapters.values import Values
from engine.models.architecture import Architecture
from engine.models.serial import SerialCrossEntropy, without_values
from engine.overlap.flags import ALL, Overlap
from engine.overlap.flat import in_order
from engine.overlap.schedule import WeightSchedule
from engine.overlap.weight import ShardedWeight
from engine.parallel.initial import initial
from engine.parallel.model import ParallelModel
from engine.precision import Precision


def parallelize(
    network: Architecture | nn.Module,
    comm: Comm,
    *,
    precision: Precision,
    seed: int,
    overlap: Overlap = ALL,
    checkpoint_activations: bool = False,
    device: torch.device | str = "cpu",
    kernels: Mapping[str, Kernels] = MappingProxyType({}),
    values: Values | None = None,
) -> ParallelModel:
    """This rank's part of a network on the 4D grid, with its initial weights.

    network: an architecture, or a network of transformers or litgpt, whose weights are taken unless it is on the meta
    device. The same seed gives the same global weights on every grid, whatever the precision; on the meta device there
    are none. values: weights to take instead. kernels: how linear layers multiply, by the name of the layer. Of the
    overlap, cache="auto" is left to whoever knows the memory (ParallelModel.cache_blocks). Raises UsageError if the
    grid doesn't divide the network or no adapter knows it, ValueError for a layer that there is none of on the grid.
    """
    grid, coords = comm.grid, comm.coords
    architecture, values = adapt(network, comm) if isinstance(network, nn.Module) else (network, values)
    architecture.check(grid)
    model = without_values(architecture, checkpoint_activations=checkpoint_activations)
    ties = architecture.ties
    column_major = {ties.get(f"{name}.weight", f"{name}.weight") for name, of in kernels.items() if of.column_major}
    placements = {
        name: replace(placement, column_major=name in column_major)
        for name, placement in architecture.placements().items()
    }
    parameters: dict[str, nn.Parameter] = {}
    weights: dict[str, ShardedWeight] = {}
    numels = {name: placements[name].local_numel(grid) for name in in_order(placements, grid)}
    masters, start = torch.empty(sum(numels.values()), dtype=precision.master, device=device), 0
    for name, numel in numels.items():
        placement, elements = placements[name], masters[start : start + numel]
        if values is None:
            elements.copy_(initial(placement, grid, coords, seed, device))
        else:
            elements.copy_(values(placement, grid, coords, precision.master))
        tile, start = placement.tile_shape(grid), start + numel
        parameters[name] = nn.Parameter(elements if placement.sharded else elements.view(tile))
        if placement.sharded:
            weights[name] = ShardedWeight(placement, parameters[name], tile)
    replicated = [parameter for name, parameter in parameters.items() if name not in weights]
    schedule = WeightSchedule(comm, list(weights.values()), replicated, precision, overlap, masters)

    def replacement(name: str, layer: nn.Module) -> nn.Module | None:
        """The layer of the grid for a serial one; None for one that works on a part of its features as it is."""
        weight = ties.get(f"{name}.weight", f"{name}.weight")
        bias = parameters.get(f"{name}.bias")
        match layer:
            case nn.Linear():
                return Linear(comm, schedule, weights[weight], bias, kernels.get(name, PLAIN))
            case nn.Embedding() if weight in weights:
                return TokenEmbedding(comm, schedule, weights[weight])
            case nn.Embedding():
                return PositionEmbedding(parameters[weight], precision.compute)
            case nn.LayerNorm():
                return LayerNorm(comm, schedule, parameters[weight], bias, layer.eps)
            case nn.RMSNorm():
                assert layer.eps is not None
                if placements[weight].split == (STREAM,):
                    return RMSNorm(comm, schedule, parameters[weight], layer.eps)
                return HeadNorm(comm, parameters[weight], layer.eps)
            case Dropout():
                return Dropout(layer.p, layer.site, part=coords[STREAM])
            case nn.Dropout():
                raise ValueError(f"{name} draws masks that no grid can repeat: use engine.layers.dropout.Dropout.")
            case SerialCrossEntropy():
                return CrossEntropy(comm)
            case Rotate():
                return FusedRotate()
            case SwiGLU():
                return FusedSwiGLU()
            case GELU():
                return FusedGELU(layer.approximate)
            case AddNorm():
                return FusedAddNorm()
        return None

    for name, layer in list(model.named_modules()):
        new = replacement(name, layer)
        if new is not None:
            model.set_submodule(name, new)
    found = dict(model.named_parameters())
    if strange := {name for name in placements.keys() | found.keys() if found.get(name) is not parameters.get(name)}:
        raise ValueError(f"No layer of the grid takes these parameters of {architecture.name}: {sorted(strange)}.")
    parallel = ParallelModel(model, comm, placements, schedule)
    parallel.switch(overlap)
    return parallel
