"""Measure how much memory a rank has used at most, and choose what becomes of what it frees."""

import ctypes
import gc
import os
import re
import resource
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self

import torch
from torch._C._profiler import RecordScope
from torch.autograd import profiler

from engine.measure.machine import control_groups, read_or_nothing

# Names of glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
MAPPED_BYTES, MOST_MAPPED = 1 << 17, 65536  # its own defaults


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


def return_freed_memory() -> None:
    """Let glibc give tensors back to the system when they are freed, until keep_freed_memory is called.

    Otherwise only what is larger than the largest that was freed so far is mapped by itself, and all else leaves holes:
    a network whose parts are made, copied and flattened is resident up to twice. Does nothing with another C library.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, MAPPED_BYTES)
        libc.mallopt(M_MMAP_MAX, MOST_MAPPED)


class _Allocations(profiler.profile):
    """Notes of allocations, and of operators of a kind that doesn't run here: there are many, and none is looked at.
    That of torch.profiler would load the compiler.
    """

    def _start_trace(self) -> None:
        scopes = {RecordScope.LITE_INTERPRETER}
        profiler._enable_profiler(self.config(), self.kineto_activities, scopes)  # type: ignore[call-arg]


class Allocated:
    """Watch over allocations while it is entered; peak_bytes and held_bytes are set when it is left without an error.

    Counted is what the work allocates beyond what was there when it began. On processors torch's profiler tells every
    allocation of a tensor; what libraries take for themselves while they multiply is not among them.
    """

    peak_bytes: int | None = None
    held_bytes: int | None = None
    """Bytes that are still there at the end."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        self._profile: _Allocations | None = None

    def __enter__(self) -> Self:
        gc.collect()  # or what is freed meanwhile would be counted as given back
        if self._device.type == "cuda":
            torch.cuda.current_blas_handle()  # whose workspace is nobody's
            self.forget_peak()
            self._before = torch.cuda.memory_allocated(self._device)
        else:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it writes when it starts and stops to standard error
            self._profile = _Allocations(profile_memory=True)
            self._profile.__enter__()
        return self

    def forget_peak(self) -> None:
        """Count no longer what was held and is free again, such as of kernels that were tried out. Only on CUDA."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._profile is not None:
            self._profile.__exit__(kind, error, trace)
        if error is not None:
            return
        if self._profile is None:
            self.peak_bytes = torch.cuda.max_memory_allocated(self._device) - self._before
            self.held_bytes = torch.cuda.memory_allocated(self._device) - self._before
        else:
            assert self._profile.kineto_results is not None
            events = self._profile.kineto_results.experimental_event_tree()
            self.peak_bytes, self.held_bytes = held(chain.from_iterable(map(_allocated, events)))
            self._profile = None


class Held(NamedTuple):
    """Running total of allocations less releases, in bytes."""

    most: int
    last: int


def held(events: Iterable[tuple[int, int, int]]) -> Held:
    """Return the highest running total of allocations less releases, and the last.

    events: when, where and how many, as the profiler has them, releases as negative numbers.

    The profiler doesn't see what other threads release, such as those of collectives that hold a tensor the longest. It
    is taken for released once an allocation is given any of its addresses.
    """
    starts: list[int] = []
    sizes: dict[int, int] = {}
    now = most = 0
    for _, address, size in sorted(events):
        first = bisect_left(starts, address)
        if size > 0 and first and starts[first - 1] + sizes[starts[first - 1]] > address:
            first -= 1
        gone = starts[first : bisect_left(starts, address + max(size, 1))]
        if size < 0 and not gone:  # of before
            now += size
            continue
        now -= sum(sizes.pop(start) for start in gone)
        starts[first : first + len(gone)] = [address] if size > 0 else []
        if size > 0:
            sizes[address] = size
            now += size
            most = max(most, now)
    return Held(most, now)


def _allocated(event: Any) -> Iterator[tuple[int, int, int]]:
    """Yield when, where and how many bytes an event and those within it allocated, or released if they are negative."""
    fields = event.extra_fields
    if hasattr(fields, "alloc_size"):
        yield event.start_time_ns, fields.ptr, fields.alloc_size
    for child in event.children:
        yield from _allocated(child)
