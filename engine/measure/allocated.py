"""Measure the most memory that a piece of work holds at once, as the allocator of its device counts it.

Unlike what a process has resident it has in it neither the libraries nor what was allocated before, so that two sides
of one process can be told apart.
"""

import gc
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import chain
from types import TracebackType
from typing import Any, Self

import torch
from torch._C._profiler import RecordScope
from torch.autograd import profiler


class _Allocations(profiler.profile):
    """Notes of allocations, and of operators of a kind that doesn't run here: there are many, and none is looked at.
    That of torch.profiler would load the compiler.
    """

    def _start_trace(self) -> None:
        scopes = {RecordScope.LITE_INTERPRETER}
        profiler._enable_profiler(self.config(), self.kineto_activities, scopes)  # type: ignore[call-arg]


class Allocated:
    """Watch over allocations while it is entered; peak_bytes is set when it is left without an error.

    Counted is what the work allocates beyond what was there when it began. On processors torch's profiler tells every
    allocation of a tensor; what libraries take for themselves while they multiply is not among them.
    """

    peak_bytes: int | None = None

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
        else:
            assert self._profile.kineto_results is not None
            events = self._profile.kineto_results.experimental_event_tree()
            self.peak_bytes = most_held(chain.from_iterable(map(_allocated, events)))
            self._profile = None


def most_held(events: Iterable[tuple[int, int, int]]) -> int:
    """Return the highest running total of allocations less releases, in bytes.

    events: when, where and how many, as the profiler has them, releases as negative numbers.

    The profiler doesn't see what other threads release, such as those of collectives that hold a tensor the longest. It
    is taken for released once an allocation is given any of its addresses.
    """
    starts: list[int] = []
    sizes: dict[int, int] = {}
    held = most = 0
    for _, address, size in sorted(events):
        first = bisect_left(starts, address)
        if size > 0 and first and starts[first - 1] + sizes[starts[first - 1]] > address:
            first -= 1
        gone = starts[first : bisect_left(starts, address + max(size, 1))]
        if size < 0 and not gone:  # of before
            held += size
            continue
        held -= sum(sizes.pop(start) for start in gone)
        starts[first : first + len(gone)] = [address] if size > 0 else []
        if size > 0:
            sizes[address] = size
            held += size
            most = max(most, held)
    return most


def _allocated(event: Any) -> Iterator[tuple[int, int, int]]:
    """Yield when, where and how many bytes an event and those within it allocated, or released if they are negative."""
    fields = event.extra_fields
    if hasattr(fields, "alloc_size"):
        yield event.start_time_ns, fields.ptr, fields.alloc_size
    for child in event.children:
        yield from _allocated(child)
