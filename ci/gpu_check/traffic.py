"""How fast a step's elementwise parts move memory: bytes that each has to move, by the time that it takes."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from engine.measure.sample import calls_of, sample
from engine.overlap.flat import Flat
from engine.overlap.weight import Casts
from engine.result.gpu_check import Finding
from engine.training.optim import sum_of_squares
from gpu_check.judges import RATE

ROUNDS = 12
ELEMENTS = {"cpu": 2**19, "cuda": 2**27}


def rate(name: str, call: Callable[[], object], num_bytes: float, device: torch.device) -> Finding:
    """Of the fastest of some samples."""
    calls = calls_of_each([call], device)
    best_s = min(sample(call, calls, device) for _ in range(ROUNDS if device.type == "cuda" else 2))
    return Finding(
        name=f"memory traffic of {name}", status="told", figure=num_bytes / best_s / 1e9, unit=RATE,
        sentence=f"{num_bytes / 1e6:,.1f} MB in {best_s * 1e3:.3f} ms",
    )  # fmt: skip


def calls_of_each(ways: Sequence[Callable[[], object]], device: torch.device) -> int:
    """Calls of a sample of any of them, as many as the fastest needs. Each is called before it is timed: it may compile
    then, and takes its memory.
    """
    most = 1
    for way in ways:
        way()
        most = max(most, calls_of(min(sample(way, 1, device) for _ in range(2))))
    return most


def once_a_step(device: torch.device) -> Iterator[Finding]:
    """What a step does with all parameters beside AdamW: the norm of gradients, and bf16 where masters were written."""
    masters = torch.ones(ELEMENTS[device.type], device=device)
    casts = Casts(Flat([nn.Parameter(masters)]), 0, torch.bfloat16)  # nobody tells it that its copy is fresh
    yield rate("casts to bf16", casts.start_step, masters.numel() * (4 + 2), device)
    yield rate("the gradient's norm", lambda: sum_of_squares([masters]), masters.numel() * 4, device)
