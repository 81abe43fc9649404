"""Measure the memory bandwidth by STREAM's copy, scale, add and triad with torch's operators, on all ranks at once.

Bytes are counted as STREAM counts them. Its rule for the arrays is kept: each takes at least four times the last-level
cache, unless the memory is too small or another size was asked for; the result tells both.
"""

import logging
import time
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
class MemoryBandwidth(Benchmark):
    """It measures STREAM. array_bytes: of each array; None goes by the cache. repeats: of each kernel, fewer where the
    budget ends.
    """

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
        rounds = self._rounds(world, arrays, start)
        worst = float(world.everyone([arrays.error()]).max())
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
        return Stream(array_bytes=arrays.array_bytes, cache_bytes=cache, repeats=len(rounds), kernels=kernels)

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
