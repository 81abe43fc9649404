"""Shards of a network in other libraries: the serial model on the meta device, and the values that a rank keeps, of its
parameters or of the tensors that a library stores them in.

Each value is the one that every grid starts from (engine/parallel/initial.py), however the network is cut.

Building takes at most a tenth of host memory more than the shard, measured on shards of a gigabyte: Megatron-core in
fp32, DeepSpeed's ZeRO-3 and stages in fp32 and bf16. Megatron-core in bf16, and all in fp16, are unmeasured.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from engine.errors import RunError
from engine.grid import TENSOR, Grid
from engine.models.adapters.stored import Index, Part, Stored
from engine.models.architecture import Architecture
from engine.models.serial import SerialModel
from engine.parallel.initial import fill, initial, initial_rows, without_values
from engine.peers.comparison import Case
from engine.placement import Placement

CHUNK_BYTES = 2**24
"""Bytes of values that are drawn at a time, beside the share."""


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
    grid = Grid().sized({TENSOR: ranks})
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


class Shares:
    """Initial values of all tensors that a library stores, of which none is ever whole.

    places: where the library stores the serial model's parameters. seed: of the values that every grid starts from.
    """

    def __init__(self, architecture: Architecture, places: Stored, seed: int) -> None:
        self._places, self._seed = places, seed
        self._sources: dict[str, list[tuple[Placement, Part, int]]] = defaultdict(list)
        placements = architecture.placements()
        for name, parts in places.parts.items():
            first = 0
            for part in parts:
                self._sources[part.tensor].append((placements[name], part, first))
                first += len(part.index)

    @torch.no_grad()
    def fill(self, share: Tensor, tensor: str, dim: int = 0, place: int = 0, shares: int = 1) -> None:
        """Give a share its values: of the library's tensor, cut along dim into equal shares, the one at that place.

        Raises RunError where the library has no such tensor, or one of another size.
        """
        first_name = self._places.aliases.get(tensor, tensor)
        whole = self._places.shapes.get(first_name)
        region = [slice(0, size) for size in share.shape]
        if share.dim():
            region[dim] = slice(place * share.shape[dim], (place + 1) * share.shape[dim])
        sizes = tuple(size * (shares if number == dim else 1) for number, size in enumerate(share.shape))
        if sizes != whole:
            of = f"of {list(whole)} elements" if whole else "nowhere"
            raise RunError(f"The library's {tensor} would be whole with {list(sizes)} elements, but is stored {of}.")
        filled = sum(self._fill_from(share, tuple(region), *source) for source in self._sources[first_name])
        if filled != share.numel():
            raise RunError(f"Of {tensor} {filled} elements have initial values, but a rank keeps {share.numel()}.")

    def _fill_from(self, share: Tensor, region: tuple[slice, ...], placement: Placement, part: Part, first: int) -> int:
        """Fill what comes from one parameter, from this row of it on; return the number of elements."""
        if part.transposed:
            share, region = share.t(), region[::-1]
        rows, *others = region
        filled = 0
        for serial, target in _runs(part.index, rows, 4 * share[:1].numel()):
            values = torch.empty(len(target), *share.shape[1:], dtype=torch.float32, device=share.device)
            fill(values, placement, (first + serial, *(other.start for other in others)), self._seed)
            share[torch.from_numpy(target).to(share.device)] = values.to(share.dtype)
            filled += values.numel()
        return filled


def _runs(index: Index, rows: slice, row_bytes: int) -> Iterator[tuple[int, Index]]:
    """Yield adjacent rows of a parameter that lie in a region of a tensor: the first, and the rows of the region.

    index: the tensor's row of each.
    """
    inside = np.flatnonzero((index >= rows.start) & (index < rows.stop))
    step = max(1, CHUNK_BYTES // max(1, row_bytes))
    for run in np.split(inside, np.flatnonzero(np.diff(inside) != 1) + 1):
        for begin in range(0, len(run), step):
            serial = run[begin : begin + step]
            yield int(serial[0]), index[serial] - rows.start
