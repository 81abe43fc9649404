"""Shards of the serial model: a network on the meta device, and the values of the part that a rank keeps.

Each value is the one that every grid starts from (engine/parallel/initial.py), however the network is cut.
"""

from collections.abc import Callable, Iterable
from math import prod
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from engine.grid import INNER, Grid
from engine.models.serial import SerialModel
from engine.parallel.initial import initial, initial_rows, without_values
from engine.peers.comparison import Case
from engine.placement import Placement


@runtime_checkable
class Sharded(Protocol):
    """External peer that tells what its rank holds."""

    def list_shard(self) -> Iterable[Tensor]:
        """Yield weights, masters, buffers of gradients and moments, as far as they are there."""


def count_bytes(tensors: Iterable[Tensor]) -> int:
    """Add up the storages of tensors, each once."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


def model_without_values(case: Case, dtype: torch.dtype) -> SerialModel:
    """Make the serial model on the meta device, which takes no memory. dtype: of its parameters."""
    model = without_values(case.model)
    model.to(dtype)
    model.recomputed_together = case.checkpoint_group(Grid())
    return model


def initial_elements(placement: Placement, elements: range, seed: int, device: torch.device) -> Tensor:
    """Draw these elements of a whole parameter, flattened: float32 [len(elements)]. It draws the rows they lie in."""
    if not elements:
        return torch.empty(0, device=device)
    columns = prod(placement.shape[1:])
    first, last = elements.start // columns, (elements.stop - 1) // columns
    rows = initial_rows(placement, range(first, last + 1), seed, device)
    begin = elements.start - first * columns
    return rows.view(-1)[begin : begin + len(elements)]


def initial_share(placement: Placement, ranks: int, rank: int, seed: int, device: torch.device) -> Tensor:
    """Draw a tensor rank's share of a parameter, cut as the axis of inner features does: float32. Of the rows
    of a fused projection it has its part of each part.
    """
    grid = Grid().sized({INNER: ranks})
    whole = initial(placement, grid, grid.coords(rank), seed, device)
    return whole.view(placement.tile_shape(grid))


def replace_parameters(module: nn.Module, make: Callable[[nn.Parameter], Tensor]) -> None:
    """Put a parameter of the tensor that make returns in the place of each of a module's. What a library has attached
    to one stays with it, and tied ones stay one.
    """
    made: dict[nn.Parameter, nn.Parameter] = {}
    for owner in module.modules():
        for name, old in list(owner.named_parameters(recurse=False, remove_duplicate=False)):
            if old not in made:
                made[old] = nn.Parameter(make(old), requires_grad=old.requires_grad)
                made[old].__dict__.update(old.__dict__)
            setattr(owner, name, made[old])
