"""YAML files of this folder, read as records."""

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from engine import yaml_text
from engine.errors import UsageError
from engine.files import write_text
from engine.schema import Record, first_problem

_Kind = TypeVar("_Kind", bound=Record)


class SystemFileError(UsageError):
    """Fault of a system's file: the message names the file, the key and what is expected there."""


def read_as(kind: type[_Kind], path: Path, *, what: str, holds: str, **given: str) -> _Kind:
    """Read a file as a record of that kind. Raises SystemFileError.

    what: what errors call it. holds: some of its keys, for errors. given: fields that aren't in the file.
    """
    return as_record(kind, given | read_data(path, what=what, holds=holds), path, what=what)


def as_record(kind: type[_Kind], data: dict[str, Any], path: Path, *, what: str) -> _Kind:
    """Make a record of the keys of that file. Raises SystemFileError."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise SystemFileError(
            f"{path} is not a valid {what.split(maxsplit=1)[1]} file: {first_problem(error)}"
        ) from None


def read_data(path: Path, *, what: str, holds: str) -> dict[str, Any]:
    """Return the keys of a file, unchecked. what and holds: see read_as. Raises SystemFileError."""
    try:
        data = yaml_text.read(path)
    except UsageError as error:
        raise SystemFileError(str(error)) from None
    if not isinstance(data, dict):
        raise SystemFileError(f"{path} should hold the keys of {what}, such as {holds}.")
    return data


def write(path: Path, head: str, data: dict[str, object]) -> Path:
    """Write a file in one step, with a comment at its head. Raises OSError where it can't be written."""
    write_text(path, head + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120))
    return path
