"""Save and resume a training run: weights, optimizer moments, step. A checkpoint doesn't depend on the grid.

Each entry is a serial tensor, written as the rectangles that the ranks hold (torch.distributed.checkpoint does the
files and the resharding). A checkpoint is a folder step-N, written under a temporary name and renamed when it is
whole; manifest.json in it says what it holds and how long each file is.
"""

import pickle
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from engine.checkpoint.manifest import Manifest, Saved, write_manifest
from engine.comm.contact import Line
from engine.comm.funnel import Comm
from engine.errors import RunError
from engine.parallel.model import ParallelModel
from engine.placement import Placement, Rectangle

State = Mapping[nn.Parameter, Mapping[str, Tensor]]
"""An optimizer's: of each parameter its moments by their names."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One serial tensor of a checkpoint and the elements of it that this rank holds."""

    placement: Placement
    local: Tensor
    rectangles: list[Rectangle]

    def chunks(self) -> list[ChunkStorageMetadata]:
        """Its rectangles as torch.distributed.checkpoint names them."""
        return [ChunkStorageMetadata(torch.Size(r.offsets), torch.Size(r.sizes)) for r in self.rectangles]

    def region(self, index: MetadataIndex) -> Tensor:
        """The view of the local elements that starts at an offset of the serial tensor."""
        found = next(r for r in self.rectangles if torch.Size(r.offsets) == index.offset)
        return found.of(self.local.detach())


class _SavePlanner(dcp.DefaultSavePlanner):
    def create_local_plan(self) -> SavePlan:
        items = [
            WriteItem(
                index=MetadataIndex(name, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk,
                    properties=TensorProperties.create_from_tensor(entry.local.detach()),
                    size=torch.Size(entry.placement.shape),
                ),
            )
            for name, entry in self.state_dict.items()
            for chunk in entry.chunks()
        ]
        self.plan = SavePlan(items)
        return self.plan

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        return self.state_dict[write_item.index.fqn].region(write_item.index)


class _LoadPlanner(dcp.DefaultLoadPlanner):
    def set_up_planner(
        self, state_dict: dict[str, Any], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        # The default would rebuild state_dict, which holds more than tensors.
        self.state_dict, self.metadata, self.is_coordinator = state_dict, metadata, is_coordinator

    def create_local_plan(self) -> LoadPlan:
        assert self.metadata is not None
        items: list[ReadItem] = []
        for name, entry in self.state_dict.items():
            stored = self.metadata.state_dict_metadata[name]
            assert isinstance(stored, TensorStorageMetadata)
            items += create_read_items_for_chunk_list(name, stored, entry.chunks())
        return LoadPlan(items)

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        region = self.state_dict[read_item.dest_index.fqn].region(read_item.dest_index)
        for dim, (start, length) in enumerate(zip(read_item.dest_offsets, read_item.lengths, strict=True)):
            region = region.narrow(dim, start, length)
        return region


class _Unpickler(pickle.Unpickler):
    """The library keeps its table of contents as a pickle: only the types that such a table needs may come out."""

    _METADATA = "torch.distributed.checkpoint.metadata"
    ALLOWED = frozenset(
        {
            (_METADATA, "Metadata"),
            (_METADATA, "MetadataIndex"),
            (_METADATA, "TensorStorageMetadata"),
            (_METADATA, "ChunkStorageMetadata"),
            (_METADATA, "TensorProperties"),
            (_METADATA, "StorageMeta"),
            (_METADATA, "_MEM_FORMAT_ENCODING"),
            ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
            ("torch", "Size"),
            ("torch", "float32"),
            ("torch", "float64"),
            ("torch.serialization", "_get_layout"),
            ("pathlib", "PosixPath"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # how Python 3.11.0 to 3.11.3 pickle a member of an enum
            return _memory_format
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} has no place in a checkpoint")
        return super().find_class(module, name)


def _memory_format(owner: object, name: str) -> _MEM_FORMAT_ENCODING:
    if owner is not _MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"getattr of {owner!r} has no place in a checkpoint")
    return _MEM_FORMAT_ENCODING[name]


class _Reader(dcp.FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with Path(self.path, ".metadata").open("rb") as file:
            metadata = _Unpickler(file).load()
        assert isinstance(metadata, Metadata)
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


def _entries(model: ParallelModel, state: State) -> dict[str, Entry]:
    """Every parameter and both of its moments, by a name that holds the serial one."""
    grid, coords = model.comm.grid, model.comm.coords
    found: dict[str, Entry] = {}
    for name, parameter in model.local_parameters().items():
        placement = model.placements[name]
        rectangles = placement.rectangles(grid, coords)
        found[f"model/{name}"] = Entry(placement, parameter, rectangles)
        for moment in ("exp_avg", "exp_avg_sq"):
            found[f"optimizer/{name}/{moment}"] = Entry(placement, state[parameter][moment], rectangles)
    return found


def save(folder: Path, manifest: Manifest, model: ParallelModel, state: State) -> Path:
    """Write the checkpoint folder/step-N, all ranks together; returns its path once it is whole.

    manifest.files is filled in here. A save that is killed leaves only a hidden folder, which the next save of that
    step removes.
    """
    final = folder / f"step-{manifest.step}"
    temporary = folder / f".step-{manifest.step}.part"
    first = model.comm.rank == 0
    if first:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    model.comm.barrier()
    try:
        planner = _SavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        with _line(model.comm, f"while saving {final}").held():
            dcp.save(_entries(model, state), checkpoint_id=temporary, planner=planner)
    except CheckpointException as error:
        raise RunError(f"The checkpoint {final} could not be written: {_first_cause(error)}") from error
    if first:
        files = {file.name: file.stat().st_size for file in sorted(temporary.iterdir())}
        write_manifest(manifest.model_copy(update={"files": files}), temporary)
        older = folder / f".step-{manifest.step}.old"
        if final.exists():
            shutil.rmtree(older, ignore_errors=True)
            final.rename(older)
        temporary.rename(final)
        shutil.rmtree(older, ignore_errors=True)
    model.comm.barrier()
    return final


def load(saved: Saved, model: ParallelModel, state: State) -> None:
    """Read weights and moments into this rank's part of the model and of its state, on whatever grid. All ranks
    together.
    """
    try:
        with _line(model.comm, f"while loading {saved.folder}").held():
            dcp.load(_entries(model, state), storage_reader=_Reader(saved.folder), planner=_LoadPlanner())
    except CheckpointException as error:
        raise RunError(f"The checkpoint {saved.folder} could not be read: {_first_cause(error)}") from error


def _line(comm: Comm, doing: str) -> Line:
    """The library's own way to all ranks. An error that isn't its CheckpointException is one of that way."""
    others = [rank for rank in range(comm.grid.size) if rank != comm.rank]
    return Line(comm.rank, doing, others, "torch.distributed")


def _first_cause(error: CheckpointException) -> str:
    """The library's exception (not an Exception) holds one failure a rank."""
    rank, (cause, _) = next(iter(error.failures.items()))
    return f"rank {rank}: {type(cause).__name__}: {cause}"
