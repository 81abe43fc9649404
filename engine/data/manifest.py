"""Read the manifest of a prepared folder, header.json, whose format says of which kind its data are, and check that
the files that it names are whole.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from engine.errors import UsageError
from engine.schema import Record, first_problem

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
        data = json.loads(file.read_text())
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
