"""Make a library's tensors a rank's elements of the engine's parameters, and serial parameters a library's tensors."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from engine.grid import Coords, Grid
from engine.models.adapters.stored import Stored
from engine.placement import Placement

Fetch = Callable[[str, tuple[slice, ...]], Tensor]
"""It reads a region of a library's tensor."""
WeightLoader = Callable[[Placement, Grid, Coords, torch.dtype], Tensor]
"""It gives the elements of a parameter that a rank stores: [local_numel]."""


def weight_loader(stored: Stored, fetch: Fetch) -> WeightLoader:
    """Make what reads a rank's part of a parameter region by region: never more than it keeps."""

    def load(placement: Placement, grid: Grid, coords: Coords, dtype: torch.dtype) -> Tensor:
        local = torch.empty(placement.local_numel(grid), dtype=dtype)
        for rectangle in placement.rectangles(grid, coords):
            target = rectangle.view(local)
            for run in stored.runs(placement.name, rectangle.region):
                source = fetch(run.tensor, run.region)
                target[torch.from_numpy(run.rows)] = (source.t() if run.transposed else source).to(local)
        return local

    return load


def library_state(stored: Stored, serial: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Make whole serial tensors, by name, the library's; what it calls by two names is there once."""
    found: dict[str, Tensor] = {}
    for name, value in serial.items():
        for run in stored.runs(name, tuple(slice(0, size) for size in value.shape)):
            target = found.setdefault(run.tensor, value.new_empty(stored.shapes[run.tensor]))
            rows = value[torch.from_numpy(run.rows)]
            target[run.region] = rows.t() if run.transposed else rows
    return {name: tensor.view(stored.shape(name)) for name, tensor in found.items()}
