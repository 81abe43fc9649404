"""Checkpoints of a training run: weights, the optimizer's state, step. They don't depend on the grid.

Each entry is a serial tensor, written as the rectangles that the ranks hold; files and table of contents are those of
torch.distributed.checkpoint, so its readers read them too. Its planning, which gathers what every rank holds on one, is
not used: see contents.py. A checkpoint is a folder step-N, written under a temporary name and renamed when it is whole;
manifest.json in it says what it holds and how long each file is.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import _StoragePrefix
from torch.distributed.checkpoint.planner import SavePlan

from engine.checkpoint.contents import Contents, Entry, file_name, file_prefix, stored_names
from engine.checkpoint.manifest import TABLE, Manifest, Saved, check_files, write_manifest
from engine.checkpoint.owner import Owned, own
from engine.checkpoint.torch_files import HashedFiles, Held, LoadPlanner, Reader, SavePlanner
from engine.comm.agreement import REASON_BYTES, gather_texts, together
from engine.comm.funnel import Comm
from engine.comm.launch import job_name
from engine.errors import RunError, UsageError, WriteError
from engine.files import digest_of
from engine.parallel.model import ParallelModel

CLAIMED = "claimed by "
DIGEST_BYTES = hashlib.sha256().digest_size
State = Mapping[nn.Parameter, Mapping[str, Tensor]]
"""What an optimizer keeps of each parameter, by name."""


def _held(model: ParallelModel, state: State) -> dict[str, Held]:
    found: dict[str, Held] = {}
    for name, parameter in model.local_parameters().items():
        placement = model.placements[name]
        rectangles = placement.rectangles(model.comm.grid, model.comm.coords)
        kept = state[parameter]
        for stored_as, local in zip(stored_names(name, kept), (parameter, *kept.values()), strict=True):
            found[stored_as] = Held(placement, local, rectangles)
    return found


def _entries(model: ParallelModel, state: State) -> Iterator[Entry]:
    """List what all stages hold. An optimizer keeps the same of every parameter."""
    local = model.local_parameters()
    of_another_stage = next(iter(local.values()))
    for name, placement in model.placements.items():
        parameter = local.get(name, of_another_stage)
        kept = state[parameter]
        for stored_as, held in zip(stored_names(name, kept), (parameter, *kept.values()), strict=True):
            yield Entry(stored_as, placement, held.dtype, model.parts.owners[name])


@dataclass(frozen=True, slots=True)
class Destination:
    """Folder of this run's own, in which its checkpoints go."""

    folder: Path
    token: str
    """Token of its owner, which all ranks know."""
    owned: Owned | None
    """On rank 0."""

    @classmethod
    def claimed(cls, folder: Path, comm: Comm) -> "Destination":
        """Make a folder this run's. Collective. Raises UsageError on all ranks if it is another run's."""
        owned, words = None, ""
        if comm.rank == 0:
            try:
                owned = own(folder, job_name(os.environ))
                words = CLAIMED + owned.owner.token
            except UsageError as error:
                words = str(error)
        said = gather_texts(comm, words, REASON_BYTES)[0]
        if not said.startswith(CLAIMED):
            raise UsageError(said)
        return cls(folder, said.removeprefix(CLAIMED), owned)

    def release(self) -> None:
        """Let other runs have it."""
        if self.owned is not None:
            self.owned.release()


def save(to: Destination, manifest: Manifest, model: ParallelModel, state: State) -> Path:
    """Write the checkpoint step-N, all ranks together; returns its path once it is whole.

    manifest.files is filled in here. A save that is killed leaves only a hidden folder, which the next run that owns
    the folder removes. Raises RunError on all ranks if one could not do its part, or if the folder is no longer the
    run's own.
    """
    final = to.folder / f"step-{manifest.step}"
    temporary = to.folder / f".step-{manifest.step}.{to.token}.part"
    try:
        _save(to, manifest, model, state, temporary, final)
    except RunError:
        if to.owned is not None:
            shutil.rmtree(temporary, ignore_errors=True)  # on a disk that may be full
        raise
    return final


def _save(
    to: Destination, manifest: Manifest, model: ParallelModel, state: State, temporary: Path, final: Path
) -> None:
    comm, first = model.comm, model.comm.rank == 0
    held = _held(model, state)
    contents = Contents(_entries(model, state), comm.grid)
    failed = f"The checkpoint {final} could not be written"
    with together(comm, failed):
        if to.owned is not None:
            to.owned.check()
        if first:
            temporary.mkdir(parents=True)
    digest, sizes = b"", dict[str, int]()
    with together(comm, failed):
        digest = _write(contents, held, temporary, comm.rank)
        sizes = contents.write_table(temporary) if first else {}
    digests = comm.gather_rows(torch.frombuffer(bytearray(digest or bytes(DIGEST_BYTES)), dtype=torch.uint8))
    with together(comm, failed):
        if to.owned is not None:
            to.owned.check()
        if first:
            written = {file_name(rank): bytes(row).hex() for rank, row in enumerate(digests.tolist())}
            _finish(manifest, sizes, {name: written[name] for name in sizes}, temporary, final)


def _write(contents: Contents, held: Mapping[str, Held], folder: Path, rank: int) -> bytes:
    """Write this rank's file; returns its digest, or nothing where it has no file.

    Raises RunError if anything stands elsewhere in it than the table of contents says.
    """
    items, results = contents.of(rank)
    if not items:
        return b""
    if not folder.is_dir():
        raise RunError(f"{folder} isn't there where this rank looks: save to a folder that all ranks share.")
    planner = SavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(held))
    writer = dcp.FileSystemWriter(folder)
    writer.fs = files = HashedFiles()
    plan = SavePlan(items, storage_data=_StoragePrefix(file_prefix(rank)))
    try:
        written = writer.write_data(plan, planner)
        written.wait()
    except Exception as error:
        if not files.failed:
            raise
        first = files.failed[0]
        raise WriteError(first.errno, first.strerror, str(folder / file_name(rank))) from error
    if written.value() != results:
        raise RunError("torch.save wrote other lengths than those that it gives for the same sizes.")
    return bytes.fromhex(files.digests[file_name(rank)])


def _finish(
    manifest: Manifest, sizes: Mapping[str, int], digests: Mapping[str, str], temporary: Path, final: Path
) -> None:
    """Give the checkpoint its manifest and its name. Raises RunError unless the files of all ranks are there.

    sizes, digests: of the ranks' files, by name.
    """
    # Each is asked for by its name: what a network file system lists may be older.
    files = {name: file.stat().st_size if (file := temporary / name).is_file() else 0 for name in (TABLE, *sizes)}
    for name, size in sizes.items():
        if files[name] != size:
            raise RunError(
                f"{name} has {files[name]} of {size} bytes where rank 0 looks: save to a folder that all ranks share."
            )
    known = {"files": files, "sha256": {TABLE: digest_of(temporary / TABLE), **digests}}
    write_manifest(manifest.model_copy(update=known), temporary)
    older = final.with_name(f".{final.name}.old")
    if final.exists():
        shutil.rmtree(older, ignore_errors=True)
        final.rename(older)
    temporary.rename(final)
    shutil.rmtree(older, ignore_errors=True)


def load(saved: Saved, model: ParallelModel, state: State) -> None:
    """Read weights and optimizer state into this rank's part of the model and of its state, on whatever grid. All ranks
    together; each also reads some files whole, for their digests. Raises RunError on all of them if one could not read
    its part, or found something else than what was written.
    """
    with together(model.comm, f"The checkpoint {saved.folder} could not be read"):
        check_files(saved, sorted(saved.manifest.files)[model.comm.rank :: model.comm.grid.size])
    with together(model.comm, f"The checkpoint {saved.folder} could not be read"):
        reader, planner = Reader(saved.folder), LoadPlanner()
        table, held = reader.read_metadata(), _held(model, state)
        if missing := sorted(held.keys() - table.state_dict_metadata.keys()):
            raise RunError(f"it has no {missing[0]}: resume with the optimizer that the checkpoint was saved with.")
        planner.set_up_planner(dict(held), table)
        reader.set_up_storage_reader(table, is_coordinator=False)
        reader.read_data(planner.create_local_plan(), planner).wait()
        for name, tensor in held.items():
            if not torch.isfinite(tensor.local).all():
                raise RunError(f"its {name} is not finite: resume another one.")
