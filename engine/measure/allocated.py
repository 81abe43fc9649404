"""The most memory that a piece of work holds at once, as the allocator of its device counts it.

Unlike what a process has resident it has in it neither the libraries nor what was allocated before, so that two sides
of one process can be told apart.
"""

import gc
import os
from types import TracebackType
from typing import Self

import torch
from torch.autograd.profiler import profile


class Allocated:
    """Watches allocations while it is entered; peak_bytes is set when it is left without an error.

    Counted is what the work allocates beyond what was there when it began. On processors torch's profiler tells every
    allocation of a tensor; what libraries take for themselves while they multiply is not among them.
    """

    peak_bytes: int | None = None

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        self._profile: profile | None = None

    def __enter__(self) -> Self:
        gc.collect()  # or what is freed meanwhile would be counted as given back
        if self._device.type == "cuda":
            torch.cuda.current_blas_handle()  # whose workspace is nobody's
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self._before = torch.cuda.memory_allocated(self._device)
        else:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it writes when it starts and stops to standard error
            self._profile = profile(profile_memory=True)  # that of torch.profiler would load the compiler
            self._profile.__enter__()
        return self

    def forget_peak(self) -> None:
        """What was held so far and is no longer doesn't count, such as of kernels that were tried out. Only on CUDA."""
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
            self.peak_bytes = _most(self._profile)
            self._profile = None


def _most(profiled: profile) -> int:
    """The highest running total of allocations less releases, in bytes."""
    assert profiled.kineto_results is not None
    events = [event for event in profiled.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()  # type: ignore[attr-defined]
        most = max(most, held)
    return most
