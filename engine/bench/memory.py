"""Measure the memory bandwidth by STREAM's copy, scale, add and triad with torch's operators, on all ranks at once.

Bytes are counted as STREAM counts them. Its rule for the arrays is kept: each takes at least four times the last-level
cache, unless the memory is too small or another size was asked for; the result tells both.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import torch

from engine.bench.frame import SMALLEST, Benchmark, Table, check_measurable
from engine.bench.world import FEWEST, Unmeasurable, World
from engine.comm.launch import Launch
from engine.loading import cores
from engine.measure.gemm import sample
from engine.measure.machine import read_or_nothing
from engine.result.metrics import memory_bandwidth
from engine.result.schema import Result
from engine.result.schema.bench import StreamBandwidth, StreamKernel

log = logging.getLogger(__name__)

CACHES = 4
USUAL_ARRAY = {"cpu": 1 << 27, "cuda": 1 << 30}  # bytes, where four times the cache is less
ALONE_S, TOGETHER_S = 0.01, 0.2  # of one sample: together, long against the turns that ranks take on shared cores
TOLERANCE = 1e-9


DTYPE = torch.float64
SCALAR = math.sqrt(2) - 1
"""With it a round of all kernels leaves `a` as it was, so that the numbers never grow: s a + s (a + s a) = a."""
SAMPLED = 1000

Name = Literal["copy", "scale", "add", "triad"]


PROCESSORS = Path("/sys/devices/system/cpu")
UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


class Kernel(NamedTuple):
    """Kernel of STREAM (J. D. McCalpin, Sustainable Memory Bandwidth in High Performance Computers)."""

    name: Name
    arrays: int
    """Arrays that it reads and writes in all."""


KERNELS = (Kernel("copy", 2), Kernel("scale", 2), Kernel("add", 3), Kernel("triad", 3))


class Arrays:
    """Three arrays of the same size. No kernel reads what it writes, so it may be called any number of
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
        if self._a.device.type == "cuda":
            return sample(call, 1, self._a.device)
        call()
        return 0.0


def last_level_bytes(device: torch.device) -> int | None:
    """Return the last cache's bytes, of all processors that this process may use or a CUDA device; None if unknown.

    Arrays that fit in it say nothing of the memory.
    """
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


@dataclass(frozen=True, slots=True)
class MemoryBandwidth(Benchmark):
    """Bandwidth by STREAM. array_bytes: of each array; None goes by the cache. repeats: of each kernel, fewer where the
    budget ends.
    """

    array_bytes: float | None
    repeats: int
    time_budget_s: float

    kind, dtype = "memory", "fp64"
    unmeasured = "No bandwidth could be measured"
    lost = "No bandwidth could be measured: it failed with"

    def check(self, launch: Launch, device: torch.device) -> None:
        check_measurable("An array", num_bytes=self.array_bytes, repeats=self.repeats, time_budget_s=self.time_budget_s)

    def measure(self, world: World, found: dict[str, Any]) -> None:
        found["stream"] = self.stream(world)
        for kernel in found["stream"].kernels:
            best, middle = kernel.best_bytes_per_s / 1e9, kernel.median_bytes_per_s / 1e9
            log.info("%s: best %.3g GB/s, median %.3g GB/s", kernel.name, best, middle)

    def stream(self, world: World) -> StreamBandwidth:
        """Measure every kernel. Collective. Raises Unmeasurable if the arrays don't fit, or end up wrong."""
        start = time.perf_counter()
        cache = last_level_bytes(world.device)
        usual = max(CACHES * (cache or 0), USUAL_ARRAY[world.device.type])
        size = world.size_of_buffers(self.array_bytes, usual, SMALLEST, 3, "three arrays of {:.3g} GB need")
        arrays = world.attempt(lambda: Arrays(size, world.device), "the arrays can't be allocated")
        rounds = self._rounds(world, arrays, start)
        worst = float(world.gather_rows([arrays.error()]).max())
        if worst > TOLERANCE:
            raise Unmeasurable(
                f"the arrays are off by {worst:.2g} of what they should hold: the memory or PyTorch is at fault"
            )
        kernels = tuple(
            StreamKernel(
                name=kernel.name, arrays=kernel.arrays, best_bytes_per_s=max(rates), median_bytes_per_s=median(rates)
            )
            for kernel, rates in zip(KERNELS, zip(*rounds, strict=True), strict=True)
        )
        return StreamBandwidth(array_bytes=arrays.array_bytes, cache_bytes=cache, repeats=len(rounds), kernels=kernels)

    def _rounds(self, world: World, arrays: Arrays, start: float) -> list[list[float]]:
        """Return the kernels' rates round by round. A first one warms up, and as many follow as the budget allows."""
        window_s = ALONE_S if world.size == 1 else TOGETHER_S
        found: list[list[float]] = []
        while True:
            rates = []
            for kernel in KERNELS:
                world.comm.barrier()
                rates += world.mean([arrays.rate(kernel, window_s)])
            found.append(rates)
            spent_s, rounds = time.perf_counter() - start, len(found)
            late = rounds > FEWEST and spent_s * (rounds + 1) / rounds > self.time_budget_s
            if rounds > self.repeats or world.obstacle("out of time" if late else None):
                return found[1:]

    @staticmethod
    def table(result: Result) -> Table:
        kernels = result.stream.kernels if result.stream else ()
        return ("kernel", "GB/s"), [(kernel.name, f"{kernel.best_bytes_per_s / 1e9:.2f}") for kernel in kernels]
