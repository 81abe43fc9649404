"""How fast do a step's elementwise parts move memory? Each has to move so many bytes, and takes so long."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import torch
from torch import nn

from engine.measure.gemm import calls_of, sample
from engine.overlap.weight import Casts, Flat
from engine.parallel.model import sum_of_squares
from engine.result.schema.gpu_check import Finding
from gpu_check.findings import reported
from gpu_check.judges import RATE

ROUNDS = 12
ELEMENTS = {"cpu": 2**19, "cuda": 2**28}
"""There are so many masters, which make up a turn by themselves on a GPU."""
TURN_BYTES = 2**30
"""The first arguments come again after so many bytes, four times the largest cache, the 256 MB of an MI300X."""
SHARE = 1 / 8
"""Arguments take this part of free memory: two ways have their own, and results and temporaries are larger still."""


def sets(num_bytes: int, device: torch.device) -> int:
    """Say how many sets of arguments of so many bytes make up a turn, as far as memory allows; one on a processor."""
    if device.type != "cuda":
        return 1
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return max(1, min(math.ceil(TURN_BYTES / num_bytes), int(SHARE * free_bytes / num_bytes)))


class InTurn:
    """Makes the same call with one set of arguments after the other, which no cache holds when they come again.

    What it gave back is kept until then, so that results aren't always written to one place either. The first turn
    compiles and takes the memory.
    """

    def __init__(self, calls: Sequence[Callable[[], object]]) -> None:
        self._calls, self._kept = cycle(calls), deque[object](maxlen=len(calls))
        for _ in range(len(calls) + 1):  # the oldest result goes when the next one is there
            self()

    def __call__(self) -> None:
        self._kept.append(next(self._calls)())


def rate(name: str, call: Callable[[], object], num_bytes: float, device: torch.device) -> Finding:
    """Report the memory rate of the fastest of some samples."""
    calls = calls_of_each([call], device)
    best_s = min(sample(call, calls, device) for _ in range(ROUNDS if device.type == "cuda" else 2))
    sentence = f"{num_bytes / 1e6:,.1f} MB in {best_s * 1e3:.3f} ms"
    return reported(f"memory traffic of {name}", sentence, num_bytes / best_s / 1e9, RATE)


def calls_of_each(ways: Sequence[Callable[[], object]], device: torch.device) -> int:
    """Say how many calls a sample of each has: as many as the fastest needs.

    Each is called before it is timed, as it may compile then, and takes its memory.
    """
    most = 1
    for way in ways:
        way()
        most = max(most, calls_of(min(sample(way, 1, device) for _ in range(2))))
    return most


def once_a_step(device: torch.device) -> Iterator[Finding]:
    """Time what a step does with all parameters beside AdamW: the gradients' norm, and casts of masters to bf16."""
    masters = torch.ones(ELEMENTS[device.type], device=device)
    casts = Casts(Flat([nn.Parameter(masters)]), 0, torch.bfloat16)  # its copy never counts as fresh
    yield rate("casts to bf16", casts.start_step, masters.numel() * (4 + 2), device)
    yield rate("the gradient's norm", lambda: sum_of_squares([masters]), masters.numel() * 4, device)
