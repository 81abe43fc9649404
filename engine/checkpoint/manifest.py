"""A checkpoint folder's manifest says what it holds, and whether it can be resumed. No torch: known before anything
starts.
"""

import json
import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from engine.errors import UsageError
from engine.files import write_text
from engine.models.architecture import Architecture
from engine.models.catalogue import FAMILIES
from engine.schema import Record

MANIFEST = "manifest.json"
VERSION = 4
STEP = re.compile(r"\.?step-(\d+)(\.old)?")


class Manifest(Record):
    """step counts the optimizer steps done, which is also the position in the data. files: name -> bytes. loss_scale:
    the fields of LossScale, in fp16; version 1 had none. family, name: of the network, which version 2 didn't tell.
    data: the identity of what it was trained on, which version 3 didn't tell.
    """

    version: int = VERSION
    step: int
    seed: int
    batch_size: int
    dtype: str
    family: str | None = None
    name: str | None = None
    model: dict[str, int | float | bool | str | tuple[int, ...] | None]
    files: dict[str, int]
    loss_scale: dict[str, Any] | None = None
    data: str | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """It is a whole checkpoint."""

    folder: Path
    manifest: Manifest


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write the last file that a checkpoint gets."""
    write_text(folder / MANIFEST, manifest.model_dump_json(indent=1))


def find(path: Path) -> Path:
    """Find the checkpoint at `path`, or the latest whole one below it. Raises UsageError if there is none."""
    if (path / MANIFEST).is_file():
        return path
    found = [(match, folder) for folder in path.glob("*step-*") if (match := STEP.fullmatch(folder.name))]
    # A save that was killed between its two renames leaves the older checkpoint of that step as .step-N.old.
    whole = [(int(match[1]), not match[2], folder) for match, folder in found if (folder / MANIFEST).is_file()]
    if not whole:
        raise UsageError(f"There is no checkpoint in {path}: give a folder that --save wrote.")
    return max(whole)[2]


def read_manifest(folder: Path, model: Architecture) -> Manifest:
    """Read it. Raises UsageError if the checkpoint is cut short, of another model, or newer than this code."""
    manifest = read_any(folder)
    wanted = model.shape
    usual = {field.name: field.default for field in fields(model) if field.name in wanted}  # type: ignore[arg-type]
    saved = {name: value for name, value in usual.items() if value is not MISSING} | manifest.model  # also of before
    if wanted.keys() != saved.keys():
        raise UsageError(f"The checkpoint {folder} is of a network of another architecture than {model.name}.")
    for key in sorted(wanted):
        if wanted[key] != saved[key]:
            raise UsageError(
                f"The checkpoint {folder} is of another model: its {key} is {saved[key]}, the model asked "
                f"for has {wanted[key]}."
            )
    return manifest


def network(saved: Saved) -> Architecture:
    """Make the network that a checkpoint is of. Raises UsageError if it doesn't tell."""
    family, name, shape = saved.manifest.family, saved.manifest.name, saved.manifest.model
    if family is None:
        raise UsageError(
            f"The checkpoint {saved.folder} doesn't tell its network's family: resume it once, and save it again."
        )
    try:
        return FAMILIES[family](name=name, **shape)
    except (KeyError, TypeError):
        raise UsageError(f"The checkpoint {saved.folder} is of a {family} that this Par4D doesn't know.") from None


def read_any(folder: Path) -> Manifest:
    """Read it, whichever network's it is. Raises UsageError if the checkpoint is cut short, or newer than this code."""
    try:
        data = json.loads((folder / MANIFEST).read_text())
        if isinstance(data, dict) and isinstance(data.get("version"), int) and data["version"] > VERSION:
            raise UsageError(f"The checkpoint {folder} was written by a newer Par4D: update to read it.")
        manifest = Manifest.model_validate(data)
    except (OSError, ValueError, ValidationError):
        raise UsageError(
            f"The checkpoint {folder} is cut short: its {MANIFEST} can't be read; resume another."
        ) from None
    for name, size in manifest.files.items():
        file = folder / name
        actual = file.stat().st_size if file.is_file() else 0
        if actual != size:
            raise UsageError(
                f"The checkpoint {folder} is cut short: {name} has {actual} of {size} bytes; resume another one."
            )
    return manifest
