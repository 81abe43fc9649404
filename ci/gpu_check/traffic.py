"""How fast a step's elementwise parts move memory: bytes that each has to move, by the time that it takes."""

from collections.abc import Callable, Iterator

import torch
from torch import nn

from engine.measure.sample import calls_of, sample
from engine.overlap.weight import Casts
from engine.placement import NORMAL, Gaussian, Placement
from engine.result.gpu_check import Finding
from engine.training.config import OptimConfig
from engine.training.optim import AdamW, sum_of_squares
from gpu_check.judges import RATE

ROUNDS = 12
SHAPE = {"cpu": (256, 256), "cuda": (4096, 4096)}
MATRICES = 8


def rate(name: str, call: Callable[[], object], num_bytes: float, device: torch.device) -> Finding:
    """Of the fastest of some samples, the first of which is left out: it may compile."""
    calls = calls_of(min(sample(call, 1, device) for _ in range(2)))
    best_s = min(sample(call, calls, device) for _ in range(ROUNDS if device.type == "cuda" else 2))
    return Finding(
        name=f"memory traffic of {name}", status="told", figure=num_bytes / best_s / 1e9, unit=RATE,
        sentence=f"{num_bytes / 1e6:,.1f} MB in {best_s * 1e3:.3f} ms",
    )  # fmt: skip


def once_a_step(device: torch.device) -> Iterator[Finding]:
    """What each step does with all parameters: fp32 masters with gradients and moments, of which bf16 is made."""
    shape = SHAPE[device.type]
    masters = {f"weight{n}": nn.Parameter(torch.ones(shape, device=device)) for n in range(MATRICES)}
    for master in masters.values():
        master.grad = torch.ones_like(master)
    gradients = [master.grad for master in masters.values() if master.grad is not None]
    placements = {name: Placement(name, shape, NORMAL, True, Gaussian(1.0)) for name in masters}
    optimizer, casts = AdamW(masters, placements, OptimConfig()), Casts(masters.values(), torch.bfloat16)
    elements = sum(master.numel() for master in masters.values())
    yield rate("the optimizer", optimizer.step, elements * (16 + 12), device)
    yield rate("casts to bf16", casts.start_step, elements * (4 + 2), device)
    yield rate("the gradient's norm", lambda: sum_of_squares(gradients), elements * 4, device)
