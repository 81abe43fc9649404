"""Does a GPU draw the initial values that a processor draws, and how fast?"""

from collections.abc import Iterator
from statistics import median

import torch

from engine.bench.startup import draw
from engine.grid import SPLITTING_FEATURES, Grid
from engine.parallel.initial import fill
from engine.placement import Gaussian, Placement
from engine.result.schema.gpu_check import Finding
from gpu_check.findings import passes_if, reported

ROWS, COLUMNS, EPS = 1 << 10, 1 << 11, 4.0
SHAPE = {"cpu": (1 << 10, 1 << 11), "cuda": (1 << 14, 1 << 14)}
"""The shape of the weight whose drawing is timed."""


def initial_values(device: torch.device) -> Iterator[Finding]:
    """Compare them with the processor's in float64: without MKL its own erfinv is coarser than a GPU's in fp32."""
    yield _right(device)
    timed = Placement("weight", SHAPE[device.type], SPLITTING_FEATURES, True, Gaussian(0.02))
    drawing = draw(timed, Grid(), device)
    rate = drawing.elements / median(drawing.drawn_s)
    yield reported("rate of initial values", str(drawing), rate, "elements/s")


def _right(device: torch.device) -> Finding:
    """Compare the last rows of a weight of more than 2^32 elements."""
    whole = Placement("weight", (1 << 22, COLUMNS), SPLITTING_FEATURES, True, Gaussian(0.02))
    begin = (whole.shape[0] - ROWS, 0)
    found = fill(torch.empty(ROWS, COLUMNS, device=device), whole, begin, 3).cpu().double()
    exact = fill(torch.empty(ROWS, COLUMNS, dtype=torch.float64), whole, begin, 3)
    worst = float(((found - exact) / exact).abs().nan_to_num(torch.inf).max()) / torch.finfo(torch.float32).eps
    want = f"at most {EPS:g} from the processor's in float64"
    return passes_if(worst <= EPS, "initial values", want, f"{ROWS * COLUMNS:,} values", figure=worst, unit="eps")
