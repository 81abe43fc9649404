"""Measure the launch latency: what one tiny operator, which adds to one number, costs on all ranks at once.

A step of many operators can't be shorter than that many times as long, however fast the device is.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch

from engine.bench.frame import Benchmark, Table
from engine.bench.world import World
from engine.comm.launch import Launch
from engine.errors import UsageError
from engine.result.metrics import per_operator
from engine.result.schema import Result
from engine.result.schema.bench import Launched, LaunchTime

FEWEST, MOST = 20, 10_000_000
"""Bounds of the number of samples: 20 have a 5th percentile."""
BURST = 100
"""Operators of one sample: fewer than a CUDA stream queues before its host has to wait."""
WAYS: dict[str, tuple[Launched, ...]] = {"cpu": ("dispatch",), "cuda": ("dispatch", "completion", "graph")}
"""Ways to launch, by kind of device."""


@dataclass(frozen=True, slots=True)
class Latency(Benchmark):
    """Times of launches. samples: of each way to launch."""

    samples: int

    kind, dtype = "latency", "fp32"
    unmeasured = "No launch could be measured"
    lost = "The launches failed with"

    def check(self, launch: Launch, device: torch.device) -> None:
        if not FEWEST <= self.samples <= MOST:
            raise UsageError(f"Samples are a number from {FEWEST} to {MOST}, but {self.samples} was given.")

    def measure(self, world: World, found: dict[str, Any]) -> None:
        for launched in self.launches(world):
            found["launches"] = (*found.get("launches", ()), launched)

    def launches(self, world: World) -> Iterator[LaunchTime]:
        """Measure every way to launch that the device has. Collective."""
        for name in WAYS[world.device.type]:
            world.comm.barrier()
            own = launch_time(name, world.device, self.samples)
            middle, low, high = world.mean([own.median_s, own.low_s, own.high_s])
            yield own.model_copy(update={"median_s": middle, "low_s": low, "high_s": high})

    @staticmethod
    def table(result: Result) -> Table:
        return ("launch", "µs"), [(one.name, f"{one.median_s * 1e6:.2f}") for one in result.launches]


def launch_time(name: Launched, device: torch.device, samples: int) -> LaunchTime:
    """Return the median of the samples with the 5th and 95th percentile, after a tenth as many that warm up."""
    number = torch.ones(1, device=device)

    def burst() -> None:
        for _ in range(BURST):
            number.add_(1.0)

    def finish() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def completed() -> None:
        number.add_(1.0)
        finish()

    def replayed() -> None:
        graph.replay()
        finish()

    if name == "graph":
        completed()  # what a first launch loads can't be captured
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.graph(graph):
            burst()
    call = {"dispatch": burst, "completion": completed, "graph": replayed}[name]
    operators, times = 1 if name == "completion" else BURST, []
    for _ in range(samples // 10 + samples):
        finish()
        start = time.perf_counter()
        call()
        times.append(per_operator(time.perf_counter() - start, operators))
    counted = times[samples // 10 :]
    ends = quantiles(counted, n=20)
    return LaunchTime(
        name=name, operators=operators, samples=samples, median_s=median(counted), low_s=ends[0], high_s=ends[-1]
    )
