"""Find how large the last caches before a device's memory are: arrays that fit in them say nothing of the memory."""

from pathlib import Path

import torch

from engine.measure.machine import read_or_nothing
from engine.openmp import cores

PROCESSORS = Path("/sys/devices/system/cpu")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def last_level_bytes(device: torch.device) -> int | None:
    """Return the last cache's bytes, of all processors that this process may use or a CUDA device; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    return of_processors(cores())


def of_processors(numbers: frozenset[int], folder: Path = PROCESSORS) -> int | None:
    """Add up the caches of the highest level, each once however many processors share it, as Linux tells them."""
    caches: dict[tuple[int, str], int] = {}
    for number in numbers:
        for index in (folder / f"cpu{number}" / "cache").glob("index*"):
            level, size, shared = (
                read_or_nothing(index / name).strip() for name in ("level", "size", "shared_cpu_list")
            )
            if level.isdecimal() and size[:-1].isdecimal() and size[-1] in UNITS:
                caches[int(level), shared] = int(size[:-1]) * UNITS[size[-1]]
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last) or None
