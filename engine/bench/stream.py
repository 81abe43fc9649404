"""STREAM has four kernels (J. D. McCalpin, Sustainable Memory Bandwidth in High Performance Computers)."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from engine.measure.sample import sample
from engine.result.metrics import memory_bandwidth

DTYPE = torch.float64
SCALAR = math.sqrt(2) - 1
"""With it a round of all kernels leaves `a` as it was, so that the numbers never grow: s a + s (a + s a) = a."""
SAMPLED = 1000

Name = Literal["copy", "scale", "add", "triad"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """It reads and writes so many arrays in all."""

    name: Name
    arrays: int


KERNELS = (Kernel("copy", 2), Kernel("scale", 2), Kernel("add", 3), Kernel("triad", 3))


class Arrays:
    """They are three arrays of so many bytes each. No kernel reads what it writes, so it may be called any number of
    times. Raises torch.OutOfMemoryError, or RuntimeError on a host without the memory.
    """

    def __init__(self, array_bytes: int, device: torch.device) -> None:
        count = array_bytes // DTYPE.itemsize
        self.array_bytes = count * DTYPE.itemsize
        # All different, and first touched by the thread that will use them.
        self._a = torch.linspace(1.0, 2.0, count, dtype=DTYPE, device=device)
        self._b, self._c = torch.empty_like(self._a), torch.empty_like(self._a)
        self._first = self._sample(self._a)
        self._calls: dict[Name, Callable[[], torch.Tensor]] = {
            "copy": lambda: self._c.copy_(self._a),
            "scale": lambda: torch.mul(self._c, SCALAR, out=self._b),
            "add": lambda: torch.add(self._a, self._b, out=self._c),
            "triad": lambda: torch.add(self._b, self._c, alpha=SCALAR, out=self._a),
        }

    def rate(self, kernel: Kernel, window_s: float) -> float:
        """Call until the window has passed, once at least; return bytes/s."""
        call, calls, device_s, passed_s, start = self._calls[kernel.name], 0, 0.0, 0.0, time.perf_counter()
        while not calls or passed_s < window_s:
            device_s += self._timed(call)
            calls += 1
            passed_s = time.perf_counter() - start
        return memory_bandwidth(kernel.arrays, self.array_bytes, calls, device_s or passed_s)

    def error(self) -> float:
        """Return how far, relatively, both ends of the arrays are from what they should hold after whole rounds."""
        a = self._first
        pairs = ((self._a, a), (self._b, SCALAR * a), (self._c, (1 + SCALAR) * a))
        return max(
            float(((self._sample(array) - right) / right).abs().max().nan_to_num(math.inf)) for array, right in pairs
        )

    @staticmethod
    def _sample(array: torch.Tensor) -> torch.Tensor:
        return torch.cat((array[:SAMPLED], array[-SAMPLED:]))

    def _timed(self, call: Callable[[], torch.Tensor]) -> float:
        """Call once; return its seconds on a CUDA device, and 0 on processors, where the host's clock tells."""
        if self._a.device.type != "cuda":
            call()
            return 0.0
        return sample(call, 1, self._a.device)
