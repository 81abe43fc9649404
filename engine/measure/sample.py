"""Measure how long a call takes on a device, without the clock and the launch showing."""

import time
from collections.abc import Callable

import torch

SAMPLE_S = 0.002
"""A sample lasts so long: of what is shorter it has several calls."""


def calls_of(once_s: float) -> int:
    """Return how many calls one sample has, if a call takes so long."""
    return max(1, round(SAMPLE_S / max(once_s, 1e-6)))


def own_clock() -> Callable[[], float]:
    """Give the clock of what this rank does on a processor: of one thread that thread's, which stands still while
    others have its core.
    """
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def sample(
    call: Callable[[], object], calls: int, device: torch.device, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return seconds of one call, the mean of several in a row. clock: a processor's, in seconds."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / calls
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls
