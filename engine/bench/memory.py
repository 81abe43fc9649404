"""Memory bandwidth: STREAM's copy, scale, add and triad with torch's operators, on all ranks at once.

Bytes are counted as STREAM counts them. Its rule for the arrays is kept: each takes at least four times the last-level
cache, unless the memory is too small or another size was asked for; the result tells both.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from engine.bench.benchmark import FEWEST, SMALLEST, Benchmark, Table, check_budget, check_buffer, check_repeats
from engine.bench.stream import KERNELS, Arrays
from engine.bench.world import Unmeasurable, World
from engine.comm.launch import Launch
from engine.measure.caches import last_level_bytes
from engine.result.device import Stream, StreamKernel
from engine.result.schema import Result

log = logging.getLogger(__name__)

CACHES = 4
USUAL_ARRAY = {"cpu": 1 << 27, "cuda": 1 << 30}  # bytes, where four times the cache is less
ALONE_S, TOGETHER_S = 0.01, 0.2  # of one sample: together, long against the turns that ranks take on shared cores
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class Memory(Benchmark):
    """Measures STREAM. array_bytes: None goes by the cache; repeats: of each kernel, fewer where the budget ends."""

    array_bytes: float | None
    repeats: int
    time_budget_s: float

    kind, dtype = "memory", "fp64"
    unmeasured = "No bandwidth could be measured"
    lost = "No bandwidth could be measured: it failed with"

    def check(self, launch: Launch, device: torch.device) -> None:
        check_buffer("An array", self.array_bytes)
        check_repeats("A kernel", self.repeats)
        check_budget(self.time_budget_s)

    def measure(self, world: World, found: dict[str, Any]) -> None:
        found["stream"] = self.stream(world)
        for kernel in found["stream"].kernels:
            best, middle = kernel.best_bytes_per_s / 1e9, kernel.median_bytes_per_s / 1e9
            log.info("%s: best %.3g GB/s, median %.3g GB/s", kernel.name, best, middle)

    def stream(self, world: World) -> Stream:
        """Measure every kernel. Collective. Raises Unmeasurable if the arrays don't fit, or end up wrong."""
        start = time.perf_counter()
        cache = last_level_bytes(world.device)
        usual = max(CACHES * (cache or 0), USUAL_ARRAY[world.device.type])
        size = world.size_of_buffers(self.array_bytes, usual, SMALLEST, 3, "three arrays of {:.3g} GB need")
        arrays = world.attempt(lambda: Arrays(size, world.device), "the arrays can't be allocated")
        rates: dict[str, list[float]] = {kernel.name: [] for kernel in KERNELS}
        for done, row in enumerate(_rounds(world, arrays)):
            for kernel, rate in zip(KERNELS, row, strict=True):
                rates[kernel.name].append(rate)
            spent_s = time.perf_counter() - start
            enough = done + 1 >= FEWEST and spent_s * (done + 3) / (done + 2) > self.time_budget_s  # with the warm-up
            if done + 1 >= self.repeats or world.obstacle("out of time" if enough else None):
                break
        worst = float(world.everyone([arrays.error()]).max())
        if worst > TOLERANCE:
            raise Unmeasurable(
                f"the arrays are off by {worst:.2g} of what they should hold: the memory or PyTorch is at fault"
            )
        kernels = tuple(
            StreamKernel(
                name=kernel.name,
                arrays=kernel.arrays,
                best_bytes_per_s=max(rates[kernel.name]),
                median_bytes_per_s=median(rates[kernel.name]),
            )
            for kernel in KERNELS
        )
        return Stream(array_bytes=arrays.array_bytes, cache_bytes=cache, repeats=len(rates["copy"]), kernels=kernels)

    @staticmethod
    def table(result: Result) -> Table:
        kernels = result.stream.kernels if result.stream else ()
        return ("kernel", "GB/s"), [(kernel.name, f"{kernel.best_bytes_per_s / 1e9:.2f}") for kernel in kernels]


def _rounds(world: World, arrays: Arrays) -> Iterator[list[float]]:
    """Yield the kernels' rates, round after round; a first round warms up."""
    window_s = ALONE_S if world.size == 1 else TOGETHER_S
    warm = False
    while True:
        rates = []
        for kernel in KERNELS:
            world.comm.barrier()
            rates += world.mean([arrays.rate(kernel, window_s)])
        if warm:
            yield rates
        warm = True
