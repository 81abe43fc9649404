"""Initial values, shard by shard: the same global weights for every grid, and never a full weight on any rank."""

import hashlib

import torch
from torch import Tensor

from engine.grid import Coords, Grid
from engine.placement import Constant, Placement


def initial(placement: Placement, grid: Grid, coords: Coords, seed: int) -> Tensor:
    """The elements of a parameter that a rank stores: float32 [local_numel], on the CPU.

    Every row of the serial tensor has a generator of its own, seeded by (seed, name, row). The whole row is drawn and
    then cut, because what a generator draws first depends on how much is drawn; no more than a row exists at a time.
    """
    local = torch.empty(placement.local_numel(grid), dtype=torch.float32, device="cpu")
    if isinstance(placement.init, Constant):
        return local.fill_(placement.init.value)
    generator = torch.Generator(device="cpu")
    row_length = placement.shape[1] if len(placement.shape) > 1 else 1
    for rectangle in placement.rectangles(grid, coords):
        part = rectangle.of(local).view(rectangle.sizes[0], -1)
        column = rectangle.offsets[1] if len(rectangle.offsets) > 1 else 0
        for i in range(rectangle.sizes[0]):
            generator.manual_seed(row_seed(seed, placement.name, rectangle.offsets[0] + i))
            row = torch.randn(row_length, generator=generator, device="cpu", dtype=torch.float32)
            part[i] = row[column : column + part.shape[1]]
    return local.mul_(placement.init.std)


def row_seed(seed: int, name: str, row: int) -> int:
    """A seed for one row of one parameter, without a pattern between neighbours."""
    digest = hashlib.blake2b(f"{seed}/{name}/{row}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
