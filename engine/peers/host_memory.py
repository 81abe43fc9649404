"""Host memory of this process, as Linux counts it. No torch."""

import re
from pathlib import Path

from engine.errors import UsageError
from engine.measure.machine import read_or_nothing

STATUS = Path("/proc/self/status")


def peak_bytes() -> int:
    """Return the most bytes that have been resident at once since this process began: VmHWM, which never falls."""
    match = re.search(r"^VmHWM:\s+(\d+) kB$", read_or_nothing(STATUS), re.MULTILINE)
    if match is None:
        raise UsageError(f"{STATUS} tells no VmHWM: measure a peer's host memory on Linux.")
    return int(match[1]) * 1024
