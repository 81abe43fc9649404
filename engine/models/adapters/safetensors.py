"""Contents of a folder of safetensors: names, shapes, and where in which file. No torch, so it can be read first.

A file is eight bytes with the length of a header, the header, which is JSON, and the tensors' bytes, row by row
(https://huggingface.co/docs/safetensors). Of several files an index says which tensor is where.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from engine.errors import UsageError
from engine.files import json_of

LENGTH_BYTES = 8
INDEX = ".index.json"
LONGEST_HEADER = 100_000_000
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Place of a tensor in a file."""

    name: str
    file: Path
    dtype: str
    """As the format names it."""
    shape: tuple[int, ...]
    start: int
    """First byte in the file."""
    stop: int
    """Byte after the last."""


def read_folder(folder: Path, name: str) -> dict[str, StoredTensor]:
    """Find every tensor of a folder by name. Raises UsageError, naming the file, if one is missing or cut short.

    name: of its files, but for .safetensors.
    """
    single, several = folder / f"{name}.safetensors", folder / f"{name}.safetensors{INDEX}"
    if single.is_file():
        return read_header(single)
    if not several.is_file():
        raise UsageError(f"{folder} has neither {single.name} nor {several.name}: save the network as safetensors.")
    index = read_json(several).get("weight_map")
    if not isinstance(index, Mapping) or not all(isinstance(file, str) for file in index.values()):
        raise UsageError(f"{several} has no weight_map from tensors to files: save the network again.")
    found: dict[str, StoredTensor] = {}
    for file in sorted(set(index.values())):
        if Path(file).name != file or not (folder / file).is_file():
            raise UsageError(f"{several} names {file}, which isn't in {folder}: copy all of its files.")
        found |= read_header(folder / file)
    if missing := sorted(index.keys() - found.keys()):
        raise UsageError(f"{several} places {missing[0]} in {index[missing[0]]}, which doesn't have it.")
    return found


def read_header(file: Path) -> dict[str, StoredTensor]:
    """Find every tensor of one file by name. Raises UsageError if it is cut short, or holds what isn't trained."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(LENGTH_BYTES), "little")
        text = opened.read(length) if length <= min(size, LONGEST_HEADER) else b""
    first, found = LENGTH_BYTES + length, dict[str, StoredTensor]()
    try:
        entries: dict[str, Any] = json_of(text)
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            shape, (start, stop) = tuple(entry["shape"]), entry["data_offsets"]
            if any(type(number) is not int or number < 0 for number in (*shape, start, stop)):
                raise ValueError(name)
            tensor = StoredTensor(name, file, str(entry["dtype"]), shape, first + start, first + stop)
            if size < tensor.stop:
                raise UsageError(
                    f"{file} is cut short: it has {size} bytes, {name} ends at {tensor.stop}; copy it again."
                )
            if tensor.dtype in BYTES and prod(shape) * BYTES[tensor.dtype] != stop - start:
                raise ValueError(name)
            found[name] = tensor
        last = first
        for tensor in sorted(found.values(), key=lambda one: (one.start, one.stop)):
            if tensor.start != last:
                raise UsageError(f"{file} has its {tensor.name} at {tensor.start}, not at {last}: copy it again.")
            last = tensor.stop
        if last < size:
            raise UsageError(f"{file} has {size} bytes, but its last tensor ends at {last}: copy it again.")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise UsageError(f"{file} is cut short or no safetensors: its header can't be read; copy it again.") from None
    return found


def read_json(file: Path) -> dict[str, Any]:
    """Read a JSON object. Raises UsageError if the file isn't one."""
    try:
        found = json_of(file.read_text())
    except FileNotFoundError:
        raise UsageError(f"{file} isn't there: give the folder of a network that save_pretrained() wrote.") from None
    except (OSError, ValueError):
        raise UsageError(f"{file} can't be read as JSON: copy it again.") from None
    if not isinstance(found, dict):
        raise UsageError(f"{file} holds no JSON object: copy it again.")
    return found
