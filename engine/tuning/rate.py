"""Measure how fast a device multiplies, by a short product: that tells devices apart that call themselves alike."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.measure.sample import sample

SIZE = {"cpu": 256, "cuda": 4096}
"""This is the size of the square product: on a processor it is over before another process takes its turn."""
WINDOW_S = 0.3
FEWEST = 10


def rate(device: torch.device) -> float:
    """Measure flop/s in fp32 of an accelerator, or of one thread of a processor: those of the shortest run in the
    window.

    What disturbs a machine makes runs longer, and several threads seldom run at once on a busy one.
    """
    size = SIZE[device.type]
    a, b = torch.ones(2, size, size, device=device)
    out = torch.empty(size, size, device=device)
    runs: list[float] = []
    with _one_thread():
        end = time.perf_counter() + WINDOW_S
        while len(runs) < FEWEST or time.perf_counter() < end:
            runs.append(sample(lambda: torch.mm(a, b, out=out), 1, device))
    return 2 * float(size) ** 3 / min(runs)


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
