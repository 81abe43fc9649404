"""Contents of a checkpoint's files, known from the placements alone: the same as if all ranks had told it to one."""

import io
import math
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from training import grid_id

from engine.checkpoint.contents import Contents, Entry, chunks_of, saved_bytes, stored_names
from engine.grid import Grid
from engine.models.choice import ModelChoice
from engine.optimizer_state import ADAMW

TIED = ModelChoice(layers=2, hidden=48, heads=24, vocab=96, seq=8, tied=True)
LLAMA = ModelChoice(architecture="llama", layers=2, hidden=48, heads=12, kv_heads=6, ffn=48, vocab=96, seq=8)
LARGE = Grid(8, 4, 16, 64)


def _entries(model: ModelChoice) -> list[Entry]:
    placements = model.resolve().placements()
    kept = ADAMW.names
    return [Entry(stored, p, torch.float32) for name, p in placements.items() for stored in stored_names(name, kept)]


def _table(contents: Contents, folder: Path) -> tuple[Metadata, dict[str, int]]:
    sizes = contents.write_table(folder)
    return dcp.FileSystemReader(folder).read_metadata(), sizes


def _gathered(entries: list[Entry], grid: Grid) -> tuple[list[SavePlan], Metadata]:
    """Plans of the library on one rank, to which all others have sent all that they hold."""
    plans = [
        SavePlan(
            [
                WriteItem(
                    MetadataIndex(entry.name, chunk.offsets),
                    WriteItemType.SHARD,
                    tensor_data=TensorWriteData(
                        chunk, TensorProperties(entry.dtype), torch.Size(entry.placement.shape)
                    ),
                )
                for entry in entries
                for chunk in chunks_of(entry.placement.rectangles(grid, grid.coords(rank)))
            ]
        )
        for rank in range(grid.size)
    ]
    return dcp.DefaultSavePlanner(flatten_state_dict=False).create_global_plan(plans)


def _as_sets(metadata: Metadata) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, tensor in metadata.state_dict_metadata.items():
        assert isinstance(tensor, TensorStorageMetadata)
        chunks = {(chunk.offsets, chunk.sizes) for chunk in tensor.chunks}
        assert len(chunks) == len(tensor.chunks)
        found[name] = tensor.size, tensor.properties, chunks
    return found


def _num_bytes(items: list[WriteItem]) -> int:
    return sum(math.prod(item.tensor_data.chunk.sizes) * 4 for item in items if item.tensor_data is not None)


@pytest.mark.parametrize("model", [TIED, LLAMA], ids=["tied", "llama"])
@pytest.mark.parametrize(
    "grid",
    [Grid(), Grid(1, 1, 1, 4), Grid(2, 2, 2, 1), Grid(2, 1, 2, 2), Grid(3, 2, 1, 2), Grid(1, 2, 8, 1)],
    ids=grid_id,
)
def test_the_table_that_a_rank_makes_alone_is_the_one_that_the_library_makes_of_gathered_plans(
    model: ModelChoice, grid: Grid, tmp_path: Path
) -> None:
    entries = _entries(model)
    contents = Contents(entries, grid)
    table, sizes = _table(contents, tmp_path)
    plans, gathered = _gathered(entries, grid)
    assert _as_sets(table) == _as_sets(gathered)
    assert table.storage_data.keys() == {item.index for plan in plans for item in plan.items}
    results = [contents.of(rank)[1] for rank in range(grid.size)]
    assert table.storage_data == {one.index: one.storage_data for own in results for one in own}
    assert sum(map(len, results)) == len(table.storage_data), "each rectangle is written once"
    assert sizes == {own[0].storage_data.relative_path: sum(one.size_in_bytes for one in own) for own in results if own}
    for rank in range(grid.size):
        sizes_in_order = [item.tensor_storage_size() for item in contents.of(rank)[0]]
        assert sizes_in_order == sorted(sizes_in_order), "as the library orders what it copies ahead"
    theirs = [_num_bytes(plan.items) for plan in plans]
    ours = [_num_bytes(contents.of(rank)[0]) for rank in range(grid.size)]
    assert max(ours) <= max(theirs), "as evenly spread as the library would"


def test_the_table_of_32768_ranks_holds_each_element_once_and_no_replica_over_data(tmp_path: Path) -> None:
    entries = _entries(ModelChoice(model="gpt-320b", layers=1))
    contents = Contents(entries, LARGE)
    table, sizes = _table(contents, tmp_path)
    for entry in entries:
        tensor = table.state_dict_metadata[entry.name]
        assert isinstance(tensor, TensorStorageMetadata)
        assert len({chunk.offsets for chunk in tensor.chunks}) == len(tensor.chunks)
        assert sum(math.prod(chunk.sizes) for chunk in tensor.chunks) == math.prod(entry.placement.shape)
    alone = Contents(entries, Grid(LARGE.x, LARGE.y, LARGE.z))
    (tmp_path / "alone").mkdir()
    assert table.storage_data.keys() == _table(alone, tmp_path / "alone")[0].storage_data.keys()
    for rank in (0, 511, 512, 12345):
        items, results = contents.of(rank)
        assert [item.index for item in items] == [one.index for one in results]
        assert all(table.storage_data[one.index] == one.storage_data for one in results)
        assert sizes.get(f"__{rank}_0.distcp", 0) == sum(one.size_in_bytes for one in results)
    assert (tmp_path / ".metadata").stat().st_size < 150 * len(table.storage_data)


@pytest.mark.parametrize("sizes", [(1,), (300,), (1, 300), (300, 1), (255, 257), (2, 3, 400)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_a_tensor_takes_in_a_file_is_known_without_it(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    saved = io.BytesIO()
    torch.save(torch.rand(sizes, dtype=dtype), saved)
    assert saved_bytes(dtype, torch.Size(sizes)) == len(saved.getvalue())
