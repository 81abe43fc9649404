"""Source folders, whose files are listed, and the folder that takes their place, whole or not at all."""

import logging
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from engine.data.prepared import HEADER, DataKind
from engine.errors import UsageError
from engine.files import check_utf8

log = logging.getLogger(__name__)

LEFT_OUT = "left-out.txt"
"""List, beside prepared data, of what was left out of their source, if anything."""
NAMED = 20
"""Files left out that are named on the way; the list names all."""


class LeftOut:
    """Files and folders of a source that are left out, and why."""

    def __init__(self) -> None:
        self._found: list[tuple[Path, str]] = []
        self._paths: set[Path] = set()

    @property
    def files(self) -> int:
        """Number of the files, folders and links of which something is left out."""
        return len(self._paths)

    def add(self, path: Path, cause: str) -> None:
        """Take note of a file, a folder or a link; cause follows a colon."""
        if (path, cause) in self._found[-1:]:
            return
        self._found.append((path, cause))
        self._paths.add(path)
        if len(self._found) <= NAMED:
            log.warning("%s is left out: %s", os.fsencode(path).decode(errors="backslashreplace"), cause)
        elif len(self._found) == NAMED + 1:
            log.warning("more is left out, all of which %s will name", LEFT_OUT)

    def write(self, folder: Path) -> None:
        """Write the list of all beside what is made of the others."""
        if self._found:
            lines = [os.fsencode(path) + b"\t" + cause.encode() + b"\n" for path, cause in self._found]
            (folder / LEFT_OUT).write_bytes(b"".join(lines))


def check_folders(source: Path, out: Path, kind: DataKind) -> None:
    """Raise UsageError unless the source is a folder, and `out` is free, or holds prepared data to be replaced."""
    for option, folder in (("--source", source), ("--out", out)):
        check_utf8(option, folder)
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


def files(source: Path, out: Path, left_out: LeftOut) -> Iterator[Path]:
    """List all files below a folder in sorted order, its own before those of subfolders.

    left_out: takes note of what is hidden, no file, a link to a folder, or a folder that can't be listed. The folder
    `out` is passed over.
    """

    def unlisted(error: OSError) -> None:
        left_out.add(Path(os.fsdecode(error.filename)), f"it can't be listed ({error.strerror})")

    for folder, folders, names in os.walk(source, onerror=unlisted):
        here, entered = Path(folder), []
        for name in sorted(folders):
            path = here / name
            if name.startswith("."):
                left_out.add(path, "it is hidden")
            elif path.is_symlink():
                left_out.add(path, "it is a link to a folder")
            elif path.resolve() != out:
                entered.append(name)
        folders[:] = entered
        for name in sorted(names):
            path = here / name
            if name.startswith("."):
                left_out.add(path, "it is hidden")
            elif path.is_file():
                yield path
            else:
                left_out.add(path, "it is a link to nothing" if path.is_symlink() else "it is no file")


@contextmanager
def replacing(out: Path, kind: DataKind) -> Iterator[Path]:
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
        raise UsageError(f"The {kind.folder} can't be written to {out}: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
