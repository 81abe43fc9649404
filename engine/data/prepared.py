"""Prepared folders: the manifest header.json, whose format says of which kind the data are, and files of records.

That the files are whole is checked by their sizes at each start, by their digests where that is asked for.
"""

import hashlib
import json
import logging
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from engine.errors import RunError, UsageError, first_line
from engine.files import digest_of, json_of
from engine.output import RENEWED
from engine.schema import Record, first_problem

log = logging.getLogger(__name__)

HEADER = "header.json"

AnyHeader = TypeVar("AnyHeader", bound=Record)


class DataKind(NamedTuple):
    """A kind of data, what a prepared folder of it is called, and the command that prepares it."""

    data: str
    folder: str
    command: str


KINDS: Mapping[str, DataKind] = MappingProxyType(
    {
        "par4d.tokens": DataKind("text", "corpus", "data prepare"),
        "par4d.images": DataKind("images", "image set", "data prepare-images"),
    }
)
"""Kinds of data by the format of their manifests."""


def read_manifest(path: Path, form: str, record: type[AnyHeader]) -> AnyHeader:
    """Read and check the manifest of a folder. form: the format that it has to be. Raises UsageError."""
    file, kind = path / HEADER, KINDS[form]
    try:
        data = json_of(file.read_text())
    except OSError:
        raise UsageError(
            f"{path} holds no prepared {kind.folder}: make one with "
            f"`python -m engine {kind.command} --source DIR --out {path}`."
        ) from None
    except ValueError:
        raise UsageError(f"{file} is cut short or is not JSON: prepare the {kind.folder} again.") from None
    given = data.get("format") if isinstance(data, dict) else None
    if given != form:
        if (other := KINDS.get(str(given))) is not None:
            raise UsageError(
                f"{path} holds {other.data}, but the model is trained on {kind.data}: give another --data."
            )
        raise UsageError(f"{file} is not the header of a prepared {kind.folder}: its key 'format' is not {form!r}.")
    known = record.model_fields["version"].default
    if isinstance(version := data.get("version"), int) and version > known:
        raise UsageError(
            f"{file} has format version {version}, but this Par4D reads up to {known}: update Par4D to read it."
        )
    try:
        return record.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"{file} is not a valid header: {first_problem(error)}") from None


def check_digests(version: int, digests: Mapping[str, str | None]) -> None:
    """Raise ValueError where a file of a prepared folder has no digest, but for version 1, which had none at all."""
    given = [name for name, digest in digests.items() if digest is not None]
    if version == 1 and given:
        raise ValueError(f"version 1 has no digests, but {given[0]} has one")
    if version > 1 and len(given) < len(digests):
        raise ValueError(f"{next(name for name in digests if name not in given)} has no digest")


def check_sizes(path: Path, form: str, sizes: Mapping[str, int]) -> None:
    """Raise UsageError for a file of a prepared folder that is missing or cut short. sizes: in bytes, by name."""
    for name, expected in sizes.items():
        file, again = path / name, f"prepare the {KINDS[form].folder} again."
        try:
            size = file.stat().st_size
        except OSError as error:
            raise UsageError(f"{file} can't be read ({error.strerror}): {again}") from None
        if size != expected:
            raise UsageError(f"{file} has {size} bytes, but its header says {expected}: {again}")


class Prepared(ABC, Generic[AnyHeader]):
    """Prepared folder, which each epoch shuffles anew."""

    form: ClassVar[str]
    """Format of its header."""

    def __init__(self, path: Path, header: AnyHeader) -> None:
        self.path, self.header = path, header

    @property
    @abstractmethod
    def meaning(self) -> Mapping[str, Any]:
        """Fields of the header that tell these data from others of the same bytes."""

    @property
    @abstractmethod
    def digests(self) -> Mapping[str, str | None]:
        """Digests of the files, by name."""

    @property
    def identity(self) -> str | None:
        """Digest of what the header says of the data, and of their files' digests.

        None where a file has no digest, as in data that an older Par4D prepared.
        """
        files = list(self.digests.values())
        if None in files:
            return None
        text = json.dumps([dict(self.meaning), files], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def verify(self) -> None:
        """Read all files. Raises UsageError for one that isn't what was prepared."""
        again = f"prepare the {KINDS[self.form].folder} again."
        for number, (name, expected) in enumerate(self.digests.items(), 1):
            file = self.path / name
            if expected is None:
                raise UsageError(f"{self.path / HEADER} has no digests, as an older Par4D wrote it: to verify, {again}")
            try:
                actual = digest_of(file)
            except OSError as error:
                raise UsageError(f"{file} can't be read ({first_line(error)}): {again}") from None
            if actual != expected:
                raise UsageError(
                    f"{file} is not what was prepared: its SHA-256 is {actual}, but {HEADER} says {expected}; {again}"
                )
            log.info("%d of %d files of %s verified", number, len(self.digests), self.path, extra=RENEWED)


class RecordFile:
    """File of records of one format and shape, opened when it is first read.

    It isn't mapped: a file that is cut short under a mapping kills its reader.
    """

    def __init__(self, path: Path, storage: np.dtype, shape: Sequence[int] = ()) -> None:
        self.path = path
        self._storage, self._shape = storage, tuple(shape)
        self._num_bytes = storage.itemsize * prod(self._shape)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Read records [stop - start, *shape]. Raises RunError, naming the file, if it can't be read or ends before."""
        records = np.empty((stop - start, *self._shape), self._storage)
        left, offset = records.reshape(-1).view(np.uint8).data, start * self._num_bytes
        try:
            while left:
                done = os.preadv(self._file, [left], offset)
                if not done:
                    raise RunError(
                        f"{self.path} ends at byte {offset}, though it was whole when it was opened: it was cut short "
                        "meanwhile, so prepare it again."
                    )
                left, offset = left[done:], offset + done
        except OSError as error:
            raise RunError(f"{self.path} can't be read: {error.strerror}.") from error
        return records

    @cached_property
    def _file(self) -> int:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, descriptor)
        return descriptor
