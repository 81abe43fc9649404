"""Shares of a library's tensors, drawn as the engine draws its own: a rank computes only the values that it keeps."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from engine.errors import RunError
from engine.models.adapters.stored import Index, Part, Stored
from engine.models.architecture import Architecture
from engine.parallel.initial import fill
from engine.placement import Placement

CHUNK_BYTES = 2**24
"""Values that are drawn at a time, beside the share."""


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
