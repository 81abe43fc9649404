"""Weights in safetensors: each rank reads, and writes, only what it stores. No tensor is whole on any rank."""

import logging
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import product
from math import prod
from operator import mul
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.comm.agreement import gather_texts
from engine.comm.funnel import Comm
from engine.data.tokenizer import TOKENIZER
from engine.errors import RunError
from engine.grid import CUTTING_STAGES, Axis
from engine.models.adapters.folder import OF_TOKENIZERS, Pretrained, list_copied
from engine.models.adapters.library import WeightLoader, weight_loader
from engine.models.adapters.safetensors import BYTES, LENGTH_BYTES, StoredTensor
from engine.placement import Placement

log = logging.getLogger(__name__)

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@contextmanager
def weights_of(pretrained: Pretrained) -> Iterator[WeightLoader]:
    """Read what a rank stores from the folder's files while they are open."""
    from safetensors import safe_open  # an extra: training/checks.py has looked for it

    with ExitStack() as stack:
        opened: dict[Path, Any] = {}

        def fetch(name: str, region: tuple[slice, ...]) -> Tensor:
            first, *others = [read(name, tensor, region) for tensor in pretrained.copies(name)]
            if not torch.isfinite(first).all():
                raise RunError(f"{pretrained.folder} has a number in {name} that is not finite: copy it again.")
            if any(not torch.equal(first, other) for other in others):
                raise RunError(
                    f"{pretrained.folder} has {name} twice, with different numbers, though its configuration says that "
                    "they are one: correct tie_word_embeddings there."
                )
            return first

        def read(name: str, tensor: StoredTensor, region: tuple[slice, ...]) -> Tensor:
            if tensor.file not in opened:
                opened[tensor.file] = stack.enter_context(safe_open(tensor.file, framework="pt"))
            part: Tensor
            if name in pretrained.stored.views:
                part = opened[tensor.file].get_tensor(tensor.name).view(tensor.shape)[region]
            else:
                part = opened[tensor.file].get_slice(tensor.name)[region]
            return part

        yield weight_loader(pretrained.stored, fetch)


def export(
    pretrained: Pretrained, comm: Comm, parameters: Mapping[str, Tensor], folder: Path, tokenizer: Path | None = None
) -> None:
    """Write the weights as they came: the same files, tensors and dtypes. All ranks together, on one file system.

    parameters: of this rank, by their serial names; it writes its own part. tokenizer: that trained them, which is
    written where the network came without one that is known to be the same. The folder is there once it is whole.
    Raises RunError if it can't be written.
    """
    token = gather_texts(comm, secrets.token_hex(8))[0]  # of rank 0: another run may be writing beside this one
    placements, temporary = pretrained.architecture.placements(), folder.with_name(f".{folder.name}.{token}.part")
    try:
        if comm.rank == 0:
            _prepare(pretrained, temporary, tokenizer)
        comm.barrier()
        with _Files(temporary) as files:
            for name, parameter in parameters.items():
                if _holds_first(placements[name], comm):
                    files.write(pretrained, placements[name], parameter.detach(), comm)
        comm.barrier()
        if comm.rank == 0:
            if folder.is_dir():
                folder.rmdir()  # an empty one: another is refused before the run
            temporary.rename(folder)
    except OSError as error:
        if comm.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise RunError(f"The weights could not be written to {folder}: {error.strerror or error}.") from error
    comm.barrier()


class _Files:
    """Files of a folder, each opened when it is first written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._opened: dict[str, int] = {}

    def __enter__(self) -> "_Files":
        return self

    def __exit__(self, *error: object) -> None:
        for descriptor in self._opened.values():
            os.fsync(descriptor)
            os.close(descriptor)

    def write(self, pretrained: Pretrained, placement: Placement, local: Tensor, comm: Comm) -> None:
        """Write what a rank stores of a parameter."""
        for rectangle in placement.rectangles(comm.grid, comm.coords):
            values = rectangle.view(local)
            for run in pretrained.stored.runs(placement.name, rectangle.region):
                rows = values[torch.from_numpy(run.rows).to(values.device)].cpu()
                for tensor in pretrained.copies(run.tensor):
                    self._put(tensor, run.region, rows.t() if run.transposed else rows)

    def _put(self, tensor: StoredTensor, region: tuple[slice, ...], values: Tensor) -> None:
        """Write at once what is whole but for its first dim: of a matrix whole rows, or a part of each row."""
        whole = [part == slice(0, size) for part, size in zip(region, tensor.shape, strict=True)]
        last = max((dim for dim in range(len(whole)) if not whole[dim]), default=0)
        widths = [prod(tensor.shape[dim + 1 :]) * BYTES[tensor.dtype] for dim in range(len(tensor.shape))]
        raw = values.to(DTYPES[tensor.dtype]).contiguous().view(torch.uint8).numpy()
        places = product(*(range(part.start, part.stop) for part in region[:last]))
        for place, piece in zip(places, raw.reshape(prod(raw.shape[:last]), -1), strict=True):
            at = (*place, region[last].start)
            self._write(tensor.file.name, piece.data, tensor.start + sum(map(mul, at, widths)))

    def _write(self, name: str, content: memoryview, offset: int) -> None:
        if name not in self._opened:
            self._opened[name] = os.open(self._folder / name, os.O_WRONLY)
        while content:
            written = os.pwrite(self._opened[name], content, offset)
            content, offset = content[written:], offset + written


def _holds_first(placement: Placement, comm: Comm) -> bool:
    """Return whether no rank of its stage before this one stores the same elements."""
    others = (axis for axis in Axis if axis is not CUTTING_STAGES)
    return all(axis in placement.axes or comm.coords[axis] == 0 for axis in others)


def _prepare(pretrained: Pretrained, folder: Path, tokenizer: Path | None) -> None:
    """Prepare all files, with their headers and what isn't trained; weights are holes."""
    folder.mkdir(parents=True)
    replaced = tokenizer is not None and pretrained.tokenizer is None
    for file in list_copied(pretrained.folder):
        if replaced and any(file.match(pattern) for pattern in OF_TOKENIZERS):
            log.warning("%s is not exported, as it may be of another tokenizer than that which trained", file)
        else:
            shutil.copyfile(file, folder / file.name)
    if replaced and tokenizer is not None:
        shutil.copyfile(tokenizer, folder / TOKENIZER)
    for source in {tensor.file for tensor in pretrained.tensors.values()}:
        with source.open("rb") as old, (folder / source.name).open("wb") as new:
            length = old.read(LENGTH_BYTES)
            new.write(length + old.read(int.from_bytes(length, "little")))
            for tensor in pretrained.others:
                if tensor.file == source:
                    old.seek(tensor.start)
                    new.seek(tensor.start)
                    new.write(old.read(tensor.stop - tensor.start))
            new.truncate(source.stat().st_size)
