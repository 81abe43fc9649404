"""Read the manifest of a prepared folder, header.json, whose format says of which kind its data are, and check that
the files that it names are whole: by their sizes at each start, by their digests where that is asked for.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from engine.errors import UsageError, first_line
from engine.files import digest_of, json_of
from engine.progress import RENEWED
from engine.schema import Record, first_problem

log = logging.getLogger(__name__)

HEADER = "header.json"

Of = TypeVar("Of", bound=Record)


class Kind(NamedTuple):
    """It describes a kind of data. folder: what a prepared one is called. command: what prepares it."""

    data: str
    folder: str
    command: str


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "par4d.tokens": Kind("text", "corpus", "data prepare"),
        "par4d.images": Kind("images", "image set", "data prepare-images"),
    }
)
"""It gives the kinds by the format of their manifests."""


def read_manifest(path: Path, form: str, record: type[Of]) -> Of:
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
    found = data.get("format") if isinstance(data, dict) else None
    if found != form:
        if (other := KINDS.get(str(found))) is not None:
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


def identity_of(known: Mapping[str, Any], digests: Iterable[str | None]) -> str | None:
    """Return the digest of prepared data: of what their header says of them, and of their files' digests.

    None where a file has no digest, as in data that an older Par4D prepared.
    """
    files = list(digests)
    if None in files:
        return None
    text = json.dumps([dict(known), files], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def verify(path: Path, form: str, digests: Mapping[str, str | None]) -> None:
    """Read all files of a prepared folder. Raises UsageError for one that isn't what was prepared.

    digests: by the files' names.
    """
    again = f"prepare the {KINDS[form].folder} again."
    for number, (name, expected) in enumerate(digests.items(), 1):
        if expected is None:
            raise UsageError(f"{path / HEADER} has no digests, as an older Par4D wrote it: to verify, {again}")
        try:
            found = digest_of(path / name)
        except OSError as error:
            raise UsageError(f"{path / name} can't be read ({first_line(error)}): {again}") from None
        if found != expected:
            raise UsageError(
                f"{path / name} is not what was prepared: its SHA-256 is {found}, but {HEADER} says {expected}; {again}"
            )
        log.info("%d of %d files of %s verified", number, len(digests), path, extra=RENEWED)
