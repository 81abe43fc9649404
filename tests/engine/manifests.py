"""Manifests of checkpoints that hold nothing."""

from pathlib import Path

from engine.checkpoint.manifest import TABLE, Manifest, write_manifest
from engine.files import digest_of


def as_saved(folder: Path, manifest: Manifest) -> Manifest:
    """Write it with an empty table of contents; returns it with what it then has."""
    (folder / TABLE).touch()
    files = {TABLE: 0} | manifest.files
    known = {TABLE: digest_of(folder / TABLE)} | dict.fromkeys(manifest.files, "0" * 64)
    whole = manifest.model_copy(update={"files": files, "sha256": known})
    write_manifest(whole, folder)
    return whole
