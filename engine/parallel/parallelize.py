"""parallelize: turns a serial model into the 4D one, layer by layer, by the placements of its parameters.

Activations stay split through the whole network. Weights are created shard by shard: no rank ever holds more than its
own block (x, y) of one.
"""

import torch
from torch import nn

from engine.batch import Batch
from engine.comm.funnel import Comm
from engine.errors import UsageError
from engine.grid import Coords, Grid
from engine.layers.dropout import Dropout
from engine.layers.embedding import PositionEmbedding, TokenEmbedding
from engine.layers.linear import Linear
from engine.layers.loss import CrossEntropy
from engine.layers.norm import LayerNorm, RMSNorm
from engine.models.gpt.model import GPT
from engine.models.gpt.placements import gpt_placements
from engine.overlap.flags import ALL, AUTO, Overlap
from engine.overlap.schedule import WeightSchedule
from engine.overlap.weight import ShardedWeight
from engine.parallel.initial import initial
from engine.parallel.model import ParallelModel
from engine.placement import Placement
from engine.planning.fit import check_grid
from engine.precision import Precision


def parallelize(
    model: GPT,
    comm: Comm,
    *,
    precision: Precision,
    seed: int,
    overlap: Overlap = ALL,
    device: torch.device | str = "cpu",
) -> ParallelModel:
    """Turn a serial GPT, best built on the meta device, into this rank's part of the 4D model, with initial weights.

    The same seed gives the same global weights on every grid, whatever the precision. The serial model's layers are
    replaced in place. Of the overlap, cache="auto" is left to whoever knows the memory (ParallelModel.cache_blocks).
    Raises UsageError if the grid doesn't divide the model.
    """
    grid = comm.grid
    check_grid(model.config, grid, Batch(grid.batch_split))
    placements = gpt_placements(model.config)

    def parameter(placement: Placement) -> nn.Parameter:
        local = initial(placement, grid, comm.coords, seed).to(device, precision.master)
        return nn.Parameter(local if placement.sharded else local.view(placement.block_shape(grid)))

    parameters = {name: parameter(placement) for name, placement in placements.items()}
    sharded = {
        name: ShardedWeight(placement, parameters[name], placement.block_shape(grid))
        for name, placement in placements.items()
        if placement.sharded
    }
    replicated = [parameters[name] for name in placements if name not in sharded]
    schedule = WeightSchedule(comm, list(sharded.values()), replicated, precision, overlap)

    def replacement(name: str, layer: nn.Module) -> nn.Module | None:
        weight = f"{name}.weight"
        bias = parameters.get(f"{name}.bias")
        match layer:
            case nn.Linear():
                shared = model.config.tied and name == "head"
                return Linear(comm, schedule, sharded["tokens.weight" if shared else weight], bias)
            case nn.Embedding() if weight in sharded:
                return TokenEmbedding(comm, schedule, sharded[weight])
            case nn.Embedding():
                return PositionEmbedding(parameters[weight], precision.compute)
            case nn.LayerNorm():
                return LayerNorm(comm, parameters[weight], bias, layer.eps)
            case nn.RMSNorm():
                return RMSNorm(comm, parameters[weight], layer.eps or 1e-5)
            case Dropout():
                width = model.config.hidden // grid.y
                return Dropout(layer.p, layer.site, layer.position, comm.coords.y * width)
            case nn.CrossEntropyLoss():
                return CrossEntropy(comm)
        return None

    for name, layer in list(model.named_modules()):
        new = replacement(name, layer)
        if new is not None:
            model.set_submodule(name, new)
    missing = placements.keys() ^ dict(model.named_parameters()).keys()
    if missing:
        raise UsageError(f"The plan of this model and its layers disagree on {', '.join(sorted(missing))}.")
    parallel = ParallelModel(model, comm, placements, schedule)
    if overlap.cache != AUTO:
        parallel.cache_blocks(overlap.cache)
    return parallel


def initialise_serial(model: GPT, seed: int, *, dtype: torch.dtype, device: torch.device | str = "cpu") -> GPT:
    """Give a serial model built on the meta device the same global weights that every grid starts from."""
    placements = gpt_placements(model.config)
    model.to_empty(device=device).to(dtype)
    if model.config.tied:
        model.head.weight = model.tokens.weight  # to_empty makes two of a shared parameter
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = initial(placements[name], Grid(), Coords(0, 0, 0, 0), seed)
            parameter.copy_(values.view(parameter.shape))
    return model
