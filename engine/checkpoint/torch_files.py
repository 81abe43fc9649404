"""Files of a checkpoint as torch.distributed.checkpoint writes and reads them, with digests of what is written."""

import hashlib
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePath
from typing import IO, Any, cast

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystem, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem, WriteItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from engine.checkpoint.contents import chunks_of
from engine.errors import RunError
from engine.placement import Placement, Rectangle


@dataclass(frozen=True, slots=True)
class Held:
    """Serial tensor of a checkpoint, and the elements of it that this rank holds."""

    placement: Placement
    local: Tensor
    rectangles: list[Rectangle]

    def region(self, index: MetadataIndex) -> Tensor:
        """View the local elements from an offset of the serial tensor on."""
        found = next(r for r in self.rectangles if torch.Size(r.offsets) == index.offset)
        return found.view(self.local.detach())


class Hashed:
    """File that keeps the digest of what is written to it."""

    def __init__(self, stream: IO[bytes], failed: list[OSError]) -> None:
        """Have errors noted in `failed`: what torch.save makes of a disk that is full says nothing of it."""
        self._stream, self._failed = stream, failed
        self.digest = hashlib.sha256()

    def write(self, content: Any) -> int:
        self.digest.update(content)
        try:
            return self._stream.write(content)
        except OSError as error:
            self._failed.append(error)
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class HashedFiles(FileSystem):
    """File system that keeps the digests of what is written, by the files' names."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}
        self.failed: list[OSError] = []

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        with super().create_stream(path, mode) as stream:
            hashed = Hashed(cast("IO[bytes]", stream), self.failed)
            yield hashed
        self.digests[Path(path).name] = hashed.digest.hexdigest()


class SavePlanner(dcp.DefaultSavePlanner):
    def resolve_data(self, write_item: WriteItem) -> Tensor:
        region: Tensor = self.state_dict[write_item.index.fqn].region(write_item.index)
        return region.reshape(-1).view(region.shape)  # the strides that its sizes give, which are written too


class LoadPlanner(dcp.DefaultLoadPlanner):
    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        # The default would rebuild state_dict, which holds more than tensors.
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, held in self.state_dict.items():
            table = self.metadata.state_dict_metadata[name]
            assert isinstance(table, TensorStorageMetadata)
            if tuple(table.size) != tuple(held.placement.shape):
                raise RunError(f"its {name} is {list(table.size)}, but the network's is {list(held.placement.shape)}.")
            found = create_read_items_for_chunk_list(name, table, chunks_of(held.rectangles))
            if sum(prod(item.lengths) for item in found) != sum(prod(r.sizes) for r in held.rectangles):
                raise RunError(f"its table of contents has not all of {name}: resume another one.")
            items += found
        return LoadPlan(items)

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        region = self.state_dict[read_item.dest_index.fqn].region(read_item.dest_index)
        for dim, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            region = region.narrow(dim, start, length)
        return region


class Unpickler(pickle.Unpickler):
    """Reader of the library's table of contents, a pickle: only what such a table holds may come out.

    Classes are told by their own names. The module beside is where the writer's Python or PyTorch kept them, and has no
    say: Python 3.13 names `pathlib._local` where 3.11 and 3.14 name `pathlib`.
    """

    HOLDS: Mapping[str, Any] = {
        **{own.__name__: own for own in (Metadata, MetadataIndex, TensorStorageMetadata, ChunkStorageMetadata)},
        **{own.__name__: own for own in (TensorProperties, StorageMeta, _MEM_FORMAT_ENCODING, _StorageInfo)},
        **{"Size": torch.Size, "float32": torch.float32, "float64": torch.float64},
        **{"_get_layout": torch.serialization._get_layout},
        **dict.fromkeys(("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath"), PurePath),
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # how Python 3.11.0 to 3.11.3 pickle a member of an enum
            return _memory_format
        if name not in self.HOLDS:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a checkpoint")
        return self.HOLDS[name]


def _memory_format(owner: object, name: str) -> _MEM_FORMAT_ENCODING:
    if owner is not _MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"getattr of {owner!r} has no place in a checkpoint")
    return _MEM_FORMAT_ENCODING[name]


class Reader(dcp.FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with Path(self.path, ".metadata").open("rb") as file:
            metadata = Unpickler(file).load()
        assert isinstance(metadata, Metadata)
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata
