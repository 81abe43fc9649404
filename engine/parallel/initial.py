"""Initial values, shard by shard: the same global weights for every grid, and never a full weight on any rank."""

import hashlib

import torch
from torch import Tensor

from engine.grid import Coords, Grid
from engine.models.architecture import Architecture
from engine.models.serial import SerialModel, without_values
from engine.placement import Constant, Placement


def initial(placement: Placement, grid: Grid, coords: Coords, seed: int, device: torch.device | str = "cpu") -> Tensor:
    """The elements of a parameter that a rank stores: float32 [local_numel]. On the meta device nothing is drawn.

    Every row, which is all that one index of the first dim selects, has a generator of its own, seeded by (seed, name,
    row). The whole row is drawn and then cut, because what a generator draws first depends on how much is drawn; no
    more than a row exists at a time.
    """
    if torch.device(device).type == "meta":
        return torch.empty(placement.local_numel(grid), dtype=torch.float32, device=device)
    local = torch.empty(placement.local_numel(grid), dtype=torch.float32, device="cpu")
    if isinstance(placement.init, Constant):
        return local.fill_(placement.init.value).to(device)
    generator = torch.Generator(device="cpu")
    row = torch.empty(placement.shape[1:], dtype=torch.float32, device="cpu")
    for rectangle in placement.rectangles(grid, coords):
        first, *others = rectangle.region
        drawn = row[tuple(others)]
        for number, part in zip(range(first.start, first.stop), rectangle.of(local).unbind(), strict=True):
            row.normal_(generator=generator.manual_seed(row_seed(seed, placement.name, number)))
            part.copy_(drawn)
    return local.mul_(placement.init.std).to(device)


def initial_rows(placement: Placement, rows: range, seed: int) -> Tensor:
    """Those rows of a whole parameter, as `initial` draws them: float32 [len(rows), ...]."""
    drawn = torch.empty(len(rows), *placement.shape[1:], dtype=torch.float32, device="cpu")
    if isinstance(placement.init, Constant):
        return drawn.fill_(placement.init.value)
    generator = torch.Generator(device="cpu")
    for number, part in zip(rows, drawn.unbind(), strict=True):
        part.normal_(generator=generator.manual_seed(row_seed(seed, placement.name, number)))
    return drawn.mul_(placement.init.std)


def initialise_serial(
    architecture: Architecture,
    seed: int,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    checkpoint_activations: bool = False,
) -> SerialModel:
    """The serial model with the same global weights that every grid starts from."""
    model = without_values(architecture, checkpoint_activations=checkpoint_activations)
    model.to(dtype)
    materialise(model, architecture, device)
    placements = architecture.placements()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = initial(placements[name], Grid(), Coords(0, 0, 0, 0), seed)
            parameter.copy_(values.view(parameter.shape))
    return model


def materialise(model: SerialModel, architecture: Architecture, device: torch.device | str) -> None:
    """Give a model on the meta device memory without values. Tied parameters stay one, of which to_empty makes two."""
    model.to_empty(device=device)
    for second, first in architecture.ties.items():
        owner, _, attribute = second.rpartition(".")
        setattr(model.get_submodule(owner), attribute, model.get_parameter(first))


def row_seed(seed: int, name: str, row: int) -> int:
    """A seed for one row of one parameter, without a pattern between neighbours."""
    digest = hashlib.blake2b(f"{seed}/{name}/{row}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
