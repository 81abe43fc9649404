"""Is the engine right on this device? The compiler, dropout, initial values, each layer and a training step, in fp32
without TF32 and in bf16.
"""

from collections.abc import Iterator

import torch

from engine.measure.gemm import full_precision
from engine.result.schema.gpu_check import Finding
from gpu_check.compiler import compiler
from gpu_check.initial import initial_values
from gpu_check.layers import dropout, layers
from gpu_check.steps import steps


def parity(device: torch.device) -> Iterator[Finding]:
    """Check whether anything can be compiled, and then all the others."""
    yield compiler(device)
    with full_precision():
        yield dropout(device)
        yield from initial_values(device)
        for name in ("fp32", "bf16"):
            yield from layers(device, name)
            yield from steps(device, name)
