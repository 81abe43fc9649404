"""parallelize(): from a serial model to the 4D one, layer by layer, by the placements of its parameters.

Activations stay split through the whole network. Weights are created shard by shard: no rank ever holds more than its
own tile (x, y) of one.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import TypeVar

import torch
from torch import nn

from engine.comm.funnel import Comm
from engine.grid import CUTTING_STAGES
from engine.layers.local import Local
from engine.layers.matmul import PLAIN, Kernels
from engine.layers.passes import Rows
from engine.layers.registry import layer_of_grid
from engine.models.adapters.library import WeightLoader, adapt
from engine.models.architecture import Architecture
from engine.models.network import Network
from engine.models.serial import SerialModel
from engine.overlap.flags import ALL, Overlap
from engine.overlap.schedule import WeightSchedule
from engine.overlap.weight import Elements, ShardedWeight, in_order, on_host
from engine.parallel.initial import initial, without_values
from engine.parallel.model import ParallelModel, Parts
from engine.pipeline.cut import Cut, cut_evenly
from engine.precision import Precision
from engine.tensor_mode import ALGORITHM_1, TensorMode

Value = TypeVar("Value")


def parallelize(
    network: Architecture | nn.Module,
    comm: Comm,
    *,
    precision: Precision,
    seed: int,
    overlap: Overlap = ALL,
    checkpoint_every: int = 0,
    checkpoint_blocks: int | None = None,
    device: torch.device | str = "cpu",
    kernels: Mapping[str, Kernels] = MappingProxyType({}),
    loader: WeightLoader | None = None,
    cut: Cut | None = None,
    offload: bool = False,
    mode: TensorMode = ALGORITHM_1,
) -> ParallelModel:
    """Make this rank's part of a network on the 4D grid, with its initial weights.

    network: an architecture, or a network of transformers, litgpt or diffusers, whose weights are taken unless it is on
    the meta device. The same seed gives the same global weights on every grid, whatever the precision; on the meta
    device there are none. checkpoint_every: blocks that are recomputed together, 0 for none. checkpoint_blocks: number
    of those that are, the first ones, None for all. kernels: how linear layers multiply, by the name of the layer.
    loader: gives the weights instead. cut: into the grid's stages (default: of equal time). offload: whether sharded
    weights lie in the host's memory, and on the device a copy in the compute dtype. mode: how activations lie.

    Of the overlap, cache="auto" is left to ParallelModel.cache_blocks. Raises UsageError if the grid doesn't divide the
    network or no adapter knows it, ValueError for a layer that there is none of on the grid.
    """
    grid, coords = comm.grid, comm.coords
    architecture, loader = adapt(network, comm) if isinstance(network, nn.Module) else (network, loader)
    architecture.check(grid)
    model = without_values(architecture)
    model.recomputed_together = checkpoint_every
    model.recomputed_blocks = checkpoint_blocks
    if mode.stream.rows or mode.inner.rows:
        model.own_rows = Rows(grid.position(coords, mode.stream.rows), prod(grid[axis] for axis in mode.stream.rows))
    ties = architecture.ties
    column_major = {ties.get(f"{name}.weight", f"{name}.weight") for name, of in kernels.items() if of.column_major}
    table = replace(architecture.network(), mode=mode)
    placements = {
        name: replace(placement, column_major=name in column_major) for name, placement in table.placements().items()
    }
    cut = cut or cut_evenly(
        architecture, grid.stages, recomputed=sum(map(model.recomputes, range(architecture.layers)))
    )
    stage = coords[CUTTING_STAGES]
    held = cut.parameters(table, stage)
    copies = [name for name, own in cut.parameters(table, cut.stages - 1).items() if not own]
    entering = [table.boundaries[place] for place in (*(blocks.start for blocks in cut.in_order), len(table.blocks))]
    parts = Parts(
        cut,
        placements,
        cut.owners(table),
        held,
        ties,
        tuple(tuple(carried.of_rank(grid, table.mode) for carried in some) for some in entering),
        table.mode,
        shared=next((name for name in copies if name in held), None),
    )
    ours = {name: placement for name, placement in placements.items() if name in held}
    parameters: dict[str, nn.Parameter] = {}
    weights: dict[str, ShardedWeight] = {}
    numels = {name: placements[name].local_numel(grid) for name in in_order(ours, grid)}
    offloaded = sum(numel for name, numel in numels.items() if offload and placements[name].sharded)
    masters = torch.empty(sum(numels.values()) - offloaded, dtype=precision.master, device=device)
    lie, start = Elements(on_host(offloaded, masters), masters), 0
    for name, numel in numels.items():
        placement, elements = placements[name], lie.part(start, start + numel)
        if loader is None:
            elements.copy_(initial(placement, grid, coords, seed, device))
        else:
            elements.copy_(loader(placement, grid, coords, precision.master))
        tile, start = placement.tile_shape(grid), start + numel
        parameters[name] = nn.Parameter(elements if placement.sharded else elements.view(tile))
        if placement.sharded:
            weights[name] = ShardedWeight(placement, parameters[name], tile)
    replicated = [parameter for name, parameter in parameters.items() if name not in weights]
    schedule = WeightSchedule(
        comm,
        list(weights.values()),
        replicated,
        precision,
        overlap,
        lie,
        gathered_again=_gathered_again(model, table, weights) if cut.stages > 1 else (),
        partial={parameters[name]: placement.partial for name, placement in ours.items() if placement.partial},
    )

    whole = table.whole_layers
    for name, layer in list(model.named_modules()):
        own = {key: f"{name}.{key}" for key, _ in layer.named_parameters(recurse=False)}
        names = {key: ties.get(full, full) for key, full in own.items()}
        if own and not held.keys() & names.values():
            model.set_submodule(name, nn.Identity())  # another stage's
            continue
        local = Local(
            name,
            comm,
            schedule,
            placements=_of_layer(placements, names),
            parameters=_of_layer(parameters, names),
            sharded=_of_layer(weights, names),
            kernels=kernels.get(name, PLAIN),
            mode=mode.whole if name in whole else mode,
        )
        if (new := layer_of_grid(layer, local)) is not None:
            model.set_submodule(name, new)
    found = {ties.get(name, name): parameter for name, parameter in model.named_parameters()}
    if strange := {name for name in ours.keys() | found.keys() if found.get(name) is not parameters.get(name)}:
        raise ValueError(f"No layer of the grid takes these parameters of {architecture.name}: {sorted(strange)}.")
    parallel = ParallelModel(model, comm, parts, schedule)
    parallel.switch(overlap)
    return parallel


def _gathered_again(model: SerialModel, table: Network, weights: Mapping[str, ShardedWeight]) -> list[ShardedWeight]:
    """List the weights that a stage doesn't keep while several passes are under way: those of blocks that aren't
    recomputed, and where none is, all.
    """
    kept = {
        placed.name
        for number, block in enumerate(table.blocks)
        if model.recomputes(number)
        for placed in block.placements(table.mode)
    }
    if model.recomputed_together:
        kept |= {placed.name for placed in table.rest}
    return [weight for name, weight in weights.items() if name not in kept]


def _of_layer(values: Mapping[str, Value], names: Mapping[str, str]) -> dict[str, Value]:
    """Return the values of a layer's parameters by their names in it. names: their names in the network."""
    return {key: values[name] for key, name in names.items() if name in values}
