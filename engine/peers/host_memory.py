"""Host memory of this process, as Linux counts it. No torch."""

import re
from pathlib import Path

from engine.measure.machine import read_or_nothing

STATUS = Path("/proc/self/status")


def peak_resident_bytes() -> int | None:
    """Return the most bytes that have been resident at once since this process began: VmHWM, which never falls.

    None where the system doesn't tell it. The peak of getrusage is no substitute: it outlives exec.
    """
    match = re.search(r"^VmHWM:\s+(\d+) kB$", read_or_nothing(STATUS), re.MULTILINE)
    return int(match[1]) * 1024 if match else None
