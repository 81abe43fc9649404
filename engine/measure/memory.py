"""Measure how much memory a rank has used at most, and choose what becomes of what it frees."""

import ctypes
import gc
import os
import re
import resource
import sys
from pathlib import Path
from typing import Literal

import torch

from engine.measure.machine import control_groups, read_or_nothing

# Names of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def peak_bytes(device: torch.device) -> tuple[Literal["resident", "allocated"], int]:
    """Return the most bytes allocated on a CUDA device or resident on the host, and which of the two it is."""
    if device.type == "cuda":
        return "allocated", torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return "resident", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def give_memory_back(device: torch.device) -> None:
    """Leave a CUDA device's memory that nobody uses any more to other processes. A host gets it by itself."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def forget_peak(device: torch.device) -> None:
    """Count what was used so far no longer. A host's memory has no such thing: its peak stays."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def free_bytes(device: torch.device) -> int:
    """Return the memory left: of a CUDA device beyond this process's peak, or of the whole host for all its ranks."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.max_memory_allocated(device)
    return free_host_bytes()


def free_host_bytes() -> int:
    """Return the host memory that can be allocated now, the control group's limit included."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if match := re.search(r"^MemAvailable:\s+(\d+) kB", read_or_nothing(Path("/proc/meminfo")), re.MULTILINE):
        available = int(match[1]) * 1024
    for folder in control_groups():
        limit, used = read_or_nothing(folder / "memory.max").strip(), read_or_nothing(folder / "memory.current").strip()
        if limit.isdecimal() and used.isdecimal():
            available = min(available, int(limit) - int(used))
    return max(available, 0)


def keep_freed_memory() -> None:
    """Let glibc reuse what is freed instead of giving it back to the system and faulting it in again.

    What the caching allocator does for a CUDA device: on CPUs page faults took 3 to 6 % of a training step, against 5 %
    more memory. Does nothing with another C library.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)
