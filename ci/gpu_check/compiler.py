"""Can functions be compiled for the device at all? The answer comes first, with what to do where they can't."""

import time

import torch

from engine.layers.compiled import REMEDY, disabled, why_not
from engine.result.schema.gpu_check import Finding
from gpu_check.findings import passes_if, reported

NAME = "compiler"


def compiler(device: torch.device) -> Finding:
    """Fail on a GPU for which nothing can be compiled, which the engine survives but not its speed."""
    if device.type != "cuda":
        return reported(NAME, "processors run the functions as they are written")
    if disabled():
        sentence = "TORCH_COMPILE_DISABLE=1 has all functions run as they are written: unset it to have them compiled"
        return reported(NAME, sentence)
    start = time.monotonic()
    why = why_not(device)
    sentence = "with nothing kept from before" if why is None else f"{why}. {REMEDY}"
    took_s, want = time.monotonic() - start, "compiles the least of functions"
    return passes_if(why is None, NAME, want, sentence, figure=took_s, unit="s")
