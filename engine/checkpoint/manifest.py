"""Manifest of a checkpoint: what it holds, and whether it can be resumed. No torch: read before anything starts."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from engine.errors import RunError, UsageError
from engine.files import digest_of, write_text
from engine.models.architecture import Architecture
from engine.models.catalogue import FAMILIES
from engine.schema import Digest, Record, first_problem
from engine.training_record import LEAST_LOSS_SCALE, MOST_LOSS_SCALE, PrecisionName

MANIFEST = "manifest.json"
VERSION = 4
DIGESTS_SINCE = 4
OWN = "own_sha256"
TABLE = ".metadata"
"""The table of contents of torch.distributed.checkpoint."""
STEP = re.compile(r"\.?step-(\d+)(\.old)?")


Count = Annotated[int, Field(ge=0, lt=1 << 48)]


class Scale(Record):
    """Loss scale of fp16."""

    value: float
    good_steps: Count
    skipped: Count
    interval: Annotated[Count, Field(gt=0)]

    @model_validator(mode="after")
    def is_one(self) -> "Scale":
        """Check that a run can have come to it."""
        if not LEAST_LOSS_SCALE <= self.value <= MOST_LOSS_SCALE:
            raise ValueError(f"a loss scale is from {LEAST_LOSS_SCALE:g} to {MOST_LOSS_SCALE:g}")
        return self


class Manifest(Record):
    """Contents of a checkpoint."""

    version: Annotated[int, Field(strict=True, ge=1)] = VERSION
    step: Count
    """Optimizer steps done, which is also the position in the data."""
    seed: int
    batch_size: Annotated[Count, Field(gt=0)]
    dtype: PrecisionName
    family: str | None = None
    """Family of the network, which version 2 didn't tell, nor its name."""
    name: str | None = None
    model: dict[str, int | float | bool | str | tuple[int, ...] | None]
    files: dict[str, Count]
    """Bytes of each file, by its name."""
    sha256: dict[str, Digest] = {}
    """Digest of each file, by its name. Version 3 had none of the following."""
    loss_scale: Scale | None = None
    """Scale of fp16's loss, which version 1 hadn't."""
    data: str | None = None
    """Identity of what it was trained on."""
    own_sha256: Digest | None = None
    """Digest of all the others."""


@dataclass(frozen=True, slots=True)
class Saved:
    """Whole checkpoint."""

    folder: Path
    manifest: Manifest


def write_manifest(manifest: Manifest, folder: Path) -> None:
    """Write the last file that a checkpoint gets."""
    data = manifest.model_dump(mode="json", exclude={OWN})
    write_text(folder / MANIFEST, json.dumps(data | {OWN: _digest(data)}, indent=1))


def _digest(data: Mapping[str, Any]) -> str:
    others = {name: value for name, value in data.items() if name != OWN}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


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
    """Read a manifest. Raises UsageError if the checkpoint is cut short, of another model, or newer than this code."""
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
    except (KeyError, TypeError, ValueError):
        raise UsageError(f"The checkpoint {saved.folder} is of a {family} that this Par4D doesn't know.") from None


def read_any(folder: Path) -> Manifest:
    """Read a manifest, whichever network's it is.

    Raises UsageError if the checkpoint is cut short, damaged, or newer than this code. Of the files only the sizes are
    looked at: check_files() reads them.
    """
    try:
        data = json.loads((folder / MANIFEST).read_text())
        if isinstance(data, dict) and isinstance(data.get("version"), int) and data["version"] > VERSION:
            raise UsageError(f"The checkpoint {folder} was written by a newer Par4D: update to read it.")
        manifest = Manifest.model_validate(data)
    except ValidationError as error:
        raise UsageError(f"The checkpoint {folder} is damaged: its {MANIFEST}, {first_problem(error)}") from None
    except (OSError, ValueError, RecursionError):
        cause = f"its {MANIFEST} can't be read"
        raise UsageError(f"The checkpoint {folder} is cut short: {cause}; resume another one.") from None
    _check(folder, manifest, data)
    for name, size in manifest.files.items():
        file = folder / name
        actual = file.stat().st_size if file.is_file() else 0
        if actual != size:
            cause = f"{name} has {actual} of {size} bytes"
            raise UsageError(f"The checkpoint {folder} is cut short: {cause}; resume another one.")
    return manifest


def _check(folder: Path, manifest: Manifest, data: Mapping[str, Any]) -> None:
    """Raise UsageError for a manifest whose entries contradict each other, or the folder's name."""
    named = STEP.fullmatch(folder.absolute().name)
    step, scale, has_digests = manifest.step, manifest.loss_scale, manifest.version >= DIGESTS_SINCE
    strange = next((name for name in manifest.files if Path(name).name != name), None)
    faults = {
        f"is of version {manifest.version}, which had no digests": not has_digests
        and bool(OWN in data or manifest.sha256 or manifest.data is not None),
        "is not as it was written": has_digests and manifest.own_sha256 != _digest(data),
        f"names no {TABLE}": TABLE not in manifest.files,
        f"names {strange!r}, which is no file of it": strange is not None,
        "has not a digest of each file": has_digests and manifest.sha256.keys() != manifest.files.keys(),
        f"is of step {step}": named is not None and int(named[1]) != step,
        "tells more skipped steps than steps": scale is not None and scale.skipped > step,
    }
    for fault, is_so in faults.items():
        if is_so:
            raise UsageError(f"The checkpoint {folder} is damaged: its {MANIFEST} {fault}; resume another one.")


def check_files(saved: Saved, names: Iterable[str]) -> None:
    """Read these files of a checkpoint whole. Raises RunError for one that isn't as it was written."""
    for name in names:
        if name in saved.manifest.sha256 and digest_of(saved.folder / name) != saved.manifest.sha256[name]:
            raise RunError(f"{name} is not as it was written, by its SHA-256: resume another one.")
