"""Clocks, which stamp moments of a rank's work; at one moment of a step the host waits for a device."""

import sys
import time
from typing import Protocol

import torch

Stamp = float | torch.cuda.Event
PROMPT_S = 5e-4


def stamp_promptly() -> None:
    """Let the thread that stamps the end of a gloo collective have Python's lock soon.

    While the main thread was in Python itself it came 5.2 ms late, as long as Python's default lets a thread keep the
    lock, and what was over by then still counted as in flight; now 0.7 ms (medians of two seconds, AMD EPYC).
    """
    sys.setswitchinterval(PROMPT_S)


class Clock(Protocol):
    """Maker of stamps, which only the clock that made them can compare."""

    def stamp(self) -> Stamp:
        """Return the present moment."""

    def stamp_end(self) -> Stamp:
        """Wait for all that was begun; return the moment at which it is done."""

    def seconds(self, start: Stamp, end: Stamp) -> float:
        """Return the time between two stamps. Both have passed: a stamp_end() came after them."""

    def forget(self) -> None:
        """Give up all stamps that were made so far: none will be compared any more."""


class HostClock:
    """Clock by the host's time. Of work on a CUDA device, which the host runs ahead of, stamp_end() alone tells."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)

    def stamp(self) -> Stamp:
        return time.perf_counter()

    def stamp_end(self) -> Stamp:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def seconds(self, start: Stamp, end: Stamp) -> float:
        assert isinstance(start, float)
        assert isinstance(end, float)
        return end - start

    def forget(self) -> None:
        pass


class EventClock:
    """Clock by timing events on the current stream of a CUDA device.

    Making one takes longer than recording it, so they are used again once they are forgotten.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: list[torch.cuda.Event] = []
        self._used: list[torch.cuda.Event] = []

    def stamp(self) -> Stamp:
        event = self._free.pop() if self._free else torch.cuda.Event(enable_timing=True)
        event.record()
        self._used.append(event)
        return event

    def stamp_end(self) -> Stamp:
        event = self.stamp()
        torch.cuda.synchronize(self._device)
        return event

    def seconds(self, start: Stamp, end: Stamp) -> float:
        assert isinstance(start, torch.cuda.Event)
        assert isinstance(end, torch.cuda.Event)
        return start.elapsed_time(end) / 1e3

    def forget(self) -> None:
        self._free += self._used
        self._used.clear()
