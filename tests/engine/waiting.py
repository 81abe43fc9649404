"""How long tests wait for what has to happen: until it has, on a slow machine with much else to do too."""

import os
import select
import time
from collections.abc import Callable

LONG_S = 1800
"""Time by which all happens, if ever."""


def until(happened: Callable[[], object], pause_s: float = 0.01) -> None:
    """Poll until it has happened. Raises TimeoutError."""
    ends = time.monotonic() + LONG_S
    while not happened():
        if time.monotonic() > ends:
            raise TimeoutError(f"It has not happened within {LONG_S} s.")
        time.sleep(pause_s)


def heard(reader: int) -> bytes:
    """Return the next byte of a pipe; nothing once no process holds its other end."""
    if not select.select([reader], [], [], LONG_S)[0]:
        raise TimeoutError(f"Nobody has written or closed the pipe within {LONG_S} s.")
    return os.read(reader, 1)
