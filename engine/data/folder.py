"""List the files of a source folder, and put what is made of them in its place, whole or not at all."""

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.data.manifest import HEADER, Kind
from engine.errors import UsageError


def check_folders(source: Path, out: Path, kind: Kind) -> None:
    """Raise UsageError unless the source is a folder, and `out` is free, or holds prepared data to be replaced."""
    if not source.is_dir():
        raise UsageError(
            f"The {kind.folder} folder {source} doesn't exist or is not a folder: give --source a folder of "
            f"{kind.data}."
        )
    if source.resolve().is_relative_to(out):
        raise UsageError(f"The {kind.folder} {source} lies inside --out {out}, which is replaced: give another --out.")
    if out.is_dir() and any(out.iterdir()) and not (out / HEADER).is_file():
        raise UsageError(
            f"{out} exists and is not a prepared {kind.folder}, so it is not replaced: give another --out."
        )
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} exists and is not a folder: give another --out.")


def files(source: Path, leave_out: Path) -> Iterator[Path]:
    """List all files below a folder in sorted order, its own before those of subfolders, but none that is hidden."""
    for folder, folders, names in os.walk(source):
        here = Path(folder)
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and (here / name).resolve() != leave_out
        )
        for name in sorted(names):
            if not name.startswith(".") and (here / name).is_file():
                yield here / name


@contextmanager
def replacing(out: Path, kind: Kind) -> Iterator[Path]:
    """Yield a fresh folder that takes the place of `out` when the block ends well and vanishes when it doesn't."""
    suffix = f"{socket.gethostname()}.{os.getpid()}"
    fresh, old = out.parent / f".{out.name}.{suffix}.new", out.parent / f".{out.name}.{suffix}.old"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh.mkdir()
        yield fresh
        if out.is_dir():
            out.rename(old)
        try:
            fresh.rename(out)
        except OSError:
            if old.is_dir():
                old.rename(out)
            raise
    except OSError as error:
        raise UsageError(f"The {kind.folder} can't be written to {out}: {error}.") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
