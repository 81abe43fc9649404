"""How much memory this rank has used at most."""

import resource
import sys
from typing import Literal

import torch


def peak_bytes(device: torch.device) -> tuple[Literal["resident", "allocated"], int]:
    """Bytes allocated on a CUDA device, or resident in the host's memory, and which of the two it is."""
    if device.type == "cuda":
        return "allocated", torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return "resident", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
