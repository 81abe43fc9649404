"""Record of a checkpoint: its table of contents, a pickle of torch's, and its manifest."""

import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from manifests import as_saved
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from engine.checkpoint.contents import Contents, Entry
from engine.checkpoint.manifest import OWN, Manifest, Saved, network, read_any, read_manifest
from engine.checkpoint.torch_files import Held, LoadPlanner, Reader, SavePlanner, Unpickler
from engine.errors import RunError, UsageError
from engine.grid import Grid
from engine.models.catalogue import lookup
from engine.models.choice import ModelChoice
from engine.placement import Constant, Placement

LLAMA = ModelChoice(architecture="llama", layers=2, hidden=48, heads=12, kv_heads=6, ffn=48, vocab=96, seq=8)
TABLES = Path(__file__).with_name("tables")


def test_a_table_of_contents_without_all_of_a_tensor_is_refused(tmp_path: Path) -> None:
    """Else what it lacks would stay as it was."""
    entry = Entry("w", Placement("w", (6, 10), (None, None), sharded=True, init=Constant(0)), torch.float32)
    Contents([entry], Grid()).write_table(tmp_path)
    table = Reader(tmp_path).read_metadata()
    for rows, says in ((6, "not all of w"), (7, r"w is \[6, 10\]")):
        placement = Placement("w", (rows, 10), (None, None), sharded=True, init=Constant(0))
        held = Held(placement, torch.zeros(rows * 10), placement.rectangles(Grid(), Grid().coords(0)))
        planner = LoadPlanner()
        stored = table.state_dict_metadata["w"]
        assert isinstance(stored, TensorStorageMetadata)
        lacking = replace(stored, chunks=stored.chunks[:-1]) if rows == 6 else stored
        planner.set_up_planner({"w": held}, replace(table, state_dict_metadata={"w": lacking}))
        with pytest.raises(RunError, match=says):
            planner.create_local_plan()


@pytest.mark.parametrize("column_major", [False, True])
def test_a_rectangle_is_written_with_the_strides_that_its_sizes_give(column_major: bool) -> None:
    grid = Grid(1, 1, 4, 1)
    placement = Placement("w", (6, 10), (None, None), sharded=True, init=Constant(0), column_major=column_major)
    local = torch.arange(placement.local_numel(grid))
    held = Held(placement, local, placement.rectangles(grid, grid.coords(1)))
    planner = SavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner({"w": held})
    assert len(held.rectangles) > 1
    for rectangle in held.rectangles:
        index = MetadataIndex("w", rectangle.offsets)
        written = planner.resolve_data(WriteItem(index, WriteItemType.SHARD))
        assert torch.equal(written, rectangle.view(local))
        assert written.stride() == torch.empty(rectangle.sizes).stride()


class _Hostile:
    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self._call, self._arguments = call, arguments

    def __reduce__(self) -> tuple[object, ...]:
        return self._call, self._arguments


@pytest.mark.parametrize("call", [print, getattr, torch_save_to_dcp, dcp.load], ids=lambda c: c.__name__)
def test_a_table_of_contents_can_not_run_code(tmp_path: Path, call: Callable[..., object]) -> None:
    file = tmp_path / "metadata"
    file.write_bytes(pickle.dumps(_Hostile(call, "never", "upper")))
    with file.open("rb") as stream, pytest.raises(pickle.UnpicklingError, match="no place"):
        Unpickler(stream).load()


class _Modules(pickle.Unpickler):
    """Records from which packages a pickle takes what it names."""

    packages: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.packages |= {module.partition(".")[0]}
        return super().find_class(module, name)


def test_a_table_of_contents_has_no_name_that_another_python_lacks(tmp_path: Path) -> None:
    """And no path, which has such a name and is another one when the checkpoint is whole."""
    entry = Entry("w", Placement("w", (6, 10), (None, None), sharded=True, init=Constant(0)), torch.float32)
    Contents([entry], Grid()).write_table(tmp_path)
    table = _Modules(io.BytesIO((tmp_path / ".metadata").read_bytes()))
    assert table.load().state_dict_metadata["w"].size == torch.Size((6, 10))
    assert table.packages - {"builtins"} == {"torch"}


@pytest.mark.parametrize("file", sorted(TABLES.iterdir()), ids=lambda file: file.stem)
def test_tables_of_contents_that_other_versions_of_python_and_torch_wrote_are_read(file: Path) -> None:
    """Each was written by what its name says, the one with a path before tables had none."""
    table = Unpickler(io.BytesIO(file.read_bytes())).load()
    found = {name: (one.size, one.properties.dtype, len(one.chunks)) for name, one in table.state_dict_metadata.items()}
    assert found == {"w": (torch.Size((6, 10)), torch.float32, 2), "b": (torch.Size((10,)), torch.float64, 1)}
    assert {index.fqn: one.relative_path for index, one in table.storage_data.items()}.keys() == {"w", "b"}


@pytest.mark.parametrize("module", ["pathlib", "pathlib._local", "pathlib.of.a.later.version"])
def test_the_path_in_an_older_table_of_contents_is_read_whatever_python_wrote_it(module: str) -> None:
    content = f"c{module}\nPosixPath\n(V/\nVsaved\ntR.".encode()
    assert Unpickler(io.BytesIO(content)).load() == PurePath("/saved")


def test_a_manifest_of_before_a_field_was_there_fits_what_has_its_usual_value(tmp_path: Path) -> None:
    model = LLAMA.resolve()
    before = {key: value for key, value in model.shape.items() if key not in ("norm_eps", "qk_norm", "head_features")}
    as_saved(tmp_path, Manifest(step=1, seed=0, batch_size=8, dtype="fp32", model=before, files={}))
    assert read_manifest(tmp_path, model).step == 1
    with pytest.raises(UsageError, match=r"qk_norm is False,.* True"):
        read_manifest(tmp_path, replace(model, qk_norm=True))  # type: ignore[type-var]


@pytest.mark.parametrize("name", ["unet-test", "improved-50m", "gpt-test"])
def test_a_manifest_tells_its_network(name: str, tmp_path: Path) -> None:
    model = lookup(name)
    manifest = Manifest(
        step=1, seed=0, batch_size=8, dtype="fp32", family=model.family, name=name, model=model.shape, files={}
    )
    whole = as_saved(tmp_path, manifest)
    assert read_manifest(tmp_path, model).model_copy(update={OWN: None}) == whole
    found = network(Saved(tmp_path, read_any(tmp_path)))
    assert (found.name, found.family, found.shape) == (name, model.family, model.shape)


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({}, "family"),
        ({"family": "rnn"}, "rnn"),
        ({"family": "unet", "name": "odd", "model": {"base": 64, "width": 3}}, "unet"),
    ],
)
def test_a_manifest_that_tells_no_known_network_is_refused(told: dict[str, Any], says: str, tmp_path: Path) -> None:
    known: dict[str, Any] = {"step": 1, "seed": 0, "batch_size": 8, "dtype": "fp32", "model": {}, "files": {}}
    manifest = Manifest(**known | told)
    with pytest.raises(UsageError, match=says):
        network(Saved(tmp_path, manifest))
