"""Write files that are whole or not there: beside their name, then renamed over it."""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.errors import UsageError, WriteError

PAUSE_S = 0.01


def cache_folder() -> Path | None:
    """Return the folder that keeps what is made once for other runs: $XDG_CACHE_HOME, or ~/.cache; None for a user
    without a home.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "par4d"
    except RuntimeError:
        return None


def check_utf8(option: str, path: Path) -> None:
    """Raise UsageError for a path that no JSON can hold, as its bytes are not UTF-8. option: what names it."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{option} {os.fsencode(path)!r} has a name that is not UTF-8, as no result can hold: rename it."
        ) from None


def json_of(text: str | bytes) -> Any:
    """Read JSON. Raises ValueError if it is none, also where it is nested deeper than Python's stack."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def digest_of(file: Path) -> str:
    """Read a file whole, and return its SHA-256. Raises OSError."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step, making its folder if need be. Raises WriteError."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step, making its folder if need be. Raises WriteError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise WriteError(error.errno, error.strerror, str(path)) from error


@contextmanager
def locked(folder: Path, limit_s: float) -> Iterator[None]:
    """Keep out whoever else locks this folder, for as long as both live.

    Goes on without where the file system has no locks, and after limit_s: who holds it may be stopped.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield
        return
    try:
        deadline = time.monotonic() + limit_s
        while not _lock(descriptor) and time.monotonic() < deadline:
            time.sleep(PAUSE_S)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Try to lock; say whether there is nothing more to wait for."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks here
    return True
