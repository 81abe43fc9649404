"""Can functions be compiled for the device at all? The answer comes first, with what to do where they can't."""

import time

import torch

from engine.layers.compiled import REMEDY, disabled, why_not
from engine.result.gpu_check import Finding

NAME = "compiler"


def compiler(device: torch.device) -> Finding:
    """It fails on a GPU for which nothing can be compiled, which the engine survives but not its speed."""
    if device.type != "cuda":
        return Finding(name=NAME, status="told", sentence="processors run the functions as they are written")
    if disabled():
        sentence = "TORCH_COMPILE_DISABLE=1 has all functions run as they are written: unset it to have them compiled"
        return Finding(name=NAME, status="told", sentence=sentence)
    start = time.monotonic()
    why = why_not(device)
    sentence = "with nothing kept from before" if why is None else f"{why}. {REMEDY}"
    return Finding(
        name=NAME, status="pass" if why is None else "fail", figure=time.monotonic() - start, unit="s",
        want="compiles the least of functions", sentence=sentence,
    )  # fmt: skip
