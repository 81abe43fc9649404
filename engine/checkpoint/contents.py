"""Contents of a checkpoint's files by placements, so that every rank knows them without asking another.

Elements that several ranks hold are written by one: of each tensor by the ranks at one place on the axes that don't
split it, where least is written so far. A rank writes its rectangles one after another into one file, and torch.save
takes as many bytes for each as dtype and sizes say.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import IO, cast

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import DEFAULT_SUFFIX, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from engine.grid import CUTTING_STAGES, Axis, Coords, Grid
from engine.placement import Placement, Rectangle

AXES = tuple(reversed(Axis))
"""Axes of places on a grid."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One serial tensor of a checkpoint."""

    name: str
    placement: Placement
    dtype: torch.dtype
    stage: int = 0
    """Stage whose ranks write it."""

    @property
    def num_bytes(self) -> int:
        return prod(self.placement.shape) * self.dtype.itemsize


def stored_names(parameter: str, kept: Iterable[str]) -> list[str]:
    """Name a parameter, and what an optimizer keeps of it under these names, by names that hold its serial one."""
    return [f"model/{parameter}", *(f"optimizer/{parameter}/{name}" for name in kept)]


def chunks_of(rectangles: Iterable[Rectangle]) -> list[ChunkStorageMetadata]:
    """Convert rectangles to what torch.distributed.checkpoint calls chunks."""
    return [ChunkStorageMetadata(torch.Size(r.offsets), torch.Size(r.sizes)) for r in rectangles]


class Contents:
    """Files of a checkpoint that the ranks of a grid write."""

    def __init__(self, entries: Iterable[Entry], grid: Grid) -> None:
        self._grid = grid
        # The writer sorts by these sizes where it copies from a GPU ahead, and elsewhere not at all.
        self._entries = sorted(entries, key=lambda entry: entry.num_bytes)
        order = grid.order[::-1]
        ranks = np.arange(grid.size).reshape([grid[axis] for axis in order])
        self._ranks = ranks.transpose([order.index(axis) for axis in AXES])
        self._writers = _writers(self._entries, grid, self._ranks.shape)
        self._shards: dict[tuple[object, ...], list[list[ChunkStorageMetadata]]] = {}

    def of(self, rank: int) -> tuple[list[WriteItem], list[WriteResult]]:
        """Return what a rank writes, in this order, and what the writer has to report of it."""
        coords, file = self._grid.coords(rank), File(rank)
        items, results = [], []
        for entry, writers in zip(self._entries, self._writers, strict=True):
            if rank not in self._ranks[writers]:
                continue
            for chunk in chunks_of(entry.placement.rectangles(self._grid, coords)):
                data = TensorWriteData(chunk, TensorProperties(entry.dtype), torch.Size(entry.placement.shape))
                items.append(WriteItem(MetadataIndex(entry.name, chunk.offsets), WriteItemType.SHARD, tensor_data=data))
                results.append(file.add(entry, chunk))
        return items, results

    def write_table(self, folder: Path) -> dict[str, int]:
        """Write the table of contents of all ranks' files; returns how many bytes each file has."""
        tensors = {
            entry.name: TensorStorageMetadata(
                TensorProperties(entry.dtype),
                torch.Size(entry.placement.shape),
                [chunk for shard in self._shards_of(entry.placement) for chunk in shard],
            )
            for entry in self._entries
        }
        files = [File(rank) for rank in range(self._grid.size)]

        def results() -> Iterator[list[WriteResult]]:  # entry by entry, so that few are there at once
            for entry, writers in zip(self._entries, self._writers, strict=True):
                by_rank = zip(self._ranks[writers].ravel().tolist(), self._shards_of(entry.placement), strict=True)
                yield [files[rank].add(entry, chunk) for rank, shard in by_rank for chunk in shard]

        _TableWriter(folder).finish(Metadata(tensors), results())  # type: ignore[arg-type]
        return {file.name: file.num_bytes for file in files if file.num_bytes}

    def _shards_of(self, placement: Placement) -> list[list[ChunkStorageMetadata]]:
        """Return the rectangles of all ranks that hold different elements, in the order of their places."""
        p = placement
        key = (
            p.shape,
            p.split,
            p.sharded,
            tuple(p.parts.items()),
            p.column_major,
            tuple(p.sliced.items()),
            tuple(p.units.items()),
        )
        if key not in self._shards:
            places = product(*(range(self._grid[axis] if axis in placement.axes else 1) for axis in AXES))
            self._shards[key] = [
                chunks_of(placement.rectangles(self._grid, Coords(**dict(zip(AXES, place, strict=True)))))
                for place in places
            ]
        return self._shards[key]


class _TableWriter(dcp.FileSystemWriter):
    """Writer of a table of contents without the path at which it is written.

    The folder gets another name when it is whole, and a path is pickled by a name that changes with Python's versions.
    """

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(save_id=self.save_id)


class File:
    """File of a rank, one rectangle after another."""

    def __init__(self, rank: int) -> None:
        self.name, self.num_bytes = file_name(rank), 0

    def add(self, entry: Entry, chunk: ChunkStorageMetadata) -> WriteResult:
        """Add a rectangle; returns where it stands."""
        length, offset = saved_bytes(entry.dtype, chunk.sizes), self.num_bytes
        self.num_bytes += length
        return WriteResult(MetadataIndex(entry.name, chunk.offsets), length, _StorageInfo(self.name, offset, length))


def file_prefix(rank: int) -> str:
    """Return the beginning of the names of a rank's files, as torch.distributed.checkpoint has it."""
    return f"__{rank}_"


def file_name(rank: int) -> str:
    return f"{file_prefix(rank)}0{DEFAULT_SUFFIX}"


def _writers(entries: Sequence[Entry], grid: Grid, shape: Sequence[int]) -> list[tuple[slice, ...]]:
    """Find the places of the ranks that write each entry. Large ones are given out first."""
    load = np.zeros(shape, dtype=np.int64)
    found: dict[str, tuple[slice, ...]] = {}
    for entry in reversed(entries):
        held = entry.placement.axes
        of_stage = load.take([entry.stage], axis=AXES.index(CUTTING_STAGES))
        heaviest = of_stage.max(axis=tuple(dim for dim, axis in enumerate(AXES) if axis in held), keepdims=True)
        least = [int(place) for place in np.unravel_index(np.argmin(heaviest), heaviest.shape)]
        least[AXES.index(CUTTING_STAGES)] = entry.stage
        writers = tuple(
            slice(None) if axis in held else slice(at, at + 1) for axis, at in zip(AXES, least, strict=True)
        )
        load[writers] += entry.placement.local_numel(grid) * entry.dtype.itemsize
        found[entry.name] = writers
    return [found[entry.name] for entry in entries]


class _Count(io.RawIOBase):
    """File of which only the length is kept."""

    def __init__(self) -> None:
        self._position = 0

    def write(self, data: object) -> int:
        size = memoryview(data).nbytes  # type: ignore[arg-type]
        self._position += size
        return size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + (self._position if whence == io.SEEK_CUR else 0)
        return self._position

    def tell(self) -> int:
        return self._position


@cache
def saved_bytes(dtype: torch.dtype, sizes: torch.Size) -> int:
    """Count the bytes that torch.save makes of a contiguous tensor: neither its memory nor its bytes are touched."""
    count = _Count()
    with torch.serialization.skip_data():
        torch.save(torch.empty(sizes, dtype=dtype), cast("IO[bytes]", count))
    return count.tell()
