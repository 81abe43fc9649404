"""Files that are whole or not there: written beside their name, then renamed over it."""

import os
import time
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Replace a text file in one step, making its folder if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
