"""Files of this folder: YAML that becomes a record, or one sentence on what is wrong with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from engine import yaml_text
from engine.errors import UsageError
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
        data: Any = yaml_text.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SystemFileError(f"{path} can't be read: {error.strerror}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SystemFileError(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(data, dict):
        raise SystemFileError(f"{path} should hold the keys of {what}, such as {holds}.")
    return data


def check_given_once(path: Path) -> None:
    """Raise SystemFileError if a key is given twice in one place of a file that can be read: YAML takes the last."""
    text = path.read_text(encoding="utf-8")
    for key in _given_twice(yaml.compose(text, Loader=yaml_text.Loader), set()):
        line = key.start_mark.line + 1
        raise SystemFileError(f"{path} has two keys {key.value!r} in one place, the second in line {line}.")


def _given_twice(node: yaml.Node | None, known: set[int]) -> Iterator[yaml.ScalarNode]:
    """Give each key that its mapping has had already. known: the nodes that were looked at, which aliases repeat."""
    if not isinstance(node, yaml.CollectionNode) or id(node) in known:
        return
    known.add(id(node))
    seen = set[str]()
    for below in node.value:
        key, value = below if isinstance(node, yaml.MappingNode) else (None, below)
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                yield key
            seen.add(key.value)
        yield from _given_twice(value, known)
