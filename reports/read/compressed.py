"""Files as they are, or compressed by gzip, whose header keeps when the file inside was written."""

import gzip
import struct
import zlib
from datetime import UTC, datetime
from pathlib import Path

SUFFIX = ".gz"
ENDING = f".json{SUFFIX}"
BROKEN = (gzip.BadGzipFile, EOFError, zlib.error)
"""Errors of a compressed file that is cut short or damaged."""


def read_bytes(path: Path) -> bytes:
    """Read a file whole. Raises OSError, and one of BROKEN for a compressed one that is damaged."""
    if path.suffix != SUFFIX:
        return path.read_bytes()
    with gzip.open(path) as opened:
        return opened.read()


def written(path: Path) -> datetime:
    """Return when a file was written, or the one inside it. Raises OSError."""
    if path.suffix == SUFFIX:
        with path.open("rb") as opened:
            header = opened.read(8)
        if len(header) == 8 and (seconds := struct.unpack("<I", header[4:])[0]):
            return datetime.fromtimestamp(seconds, UTC)
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)
