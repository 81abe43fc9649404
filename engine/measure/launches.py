"""How long it takes to launch an operator that has next to nothing to do: one number is added to.

A step of so many operators can't be shorter than that, however fast the device is.
"""

import time
from collections.abc import Callable
from statistics import median, quantiles

import torch

from engine.result.device import Launched, LaunchTime
from engine.result.metrics import per_operator

SAMPLES = 1000
BURST = 100  # operators of one sample: fewer than a CUDA stream queues before its host has to wait
WAYS: dict[str, tuple[Launched, ...]] = {"cpu": ("dispatch",), "cuda": ("dispatch", "completion", "graph")}
"""What a kind of device has."""


def launch_time(name: Launched, device: torch.device, samples: int) -> LaunchTime:
    """The median of so many samples with the 5th and the 95th percentile, after a tenth as many that warm up."""
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

    if name == "dispatch":
        return _measured(name, BURST, samples, burst, finish)
    if name == "completion":
        return _measured(name, 1, samples, completed, finish)
    completed()  # what a first launch loads can't be captured
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph):
        burst()

    def replayed() -> None:
        graph.replay()
        finish()

    return _measured(name, BURST, samples, replayed, finish)


def _measured(
    name: Launched, operators: int, samples: int, call: Callable[[], None], finish: Callable[[], None]
) -> LaunchTime:
    """finish: what follows a sample without being timed."""
    times = []
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
