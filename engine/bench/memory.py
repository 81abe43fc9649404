"""Memory bandwidth: STREAM's copy, scale, add and triad with torch's operators, on all ranks at once.

Bytes are counted as STREAM counts them. Its rule for the arrays is kept: each takes at least four times the last-level
cache, unless the memory is too small or another size was asked for; the result tells both.
"""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch

from engine.bench.at_once import LOST, AtOnce, at_once, check_budget, first_line
from engine.bench.gemm import free_bytes
from engine.bench.record import Begun
from engine.comm.launch import Launch, choose_device
from engine.errors import UsageError
from engine.measure.caches import last_level_bytes
from engine.measure.stream import DTYPE, KERNELS, Arrays
from engine.precision import DTYPES
from engine.result.device import Stream, StreamKernel
from engine.result.schema import Result
from engine.timeouts import Timeouts

log = logging.getLogger(__name__)

CACHES = 4
SMALLEST_ARRAY = 4096
USUAL_ARRAY = {"cpu": 1 << 27, "cuda": 1 << 30}  # bytes, where four times the cache is less
FEWEST = 3  # repeats
ALONE_S, TOGETHER_S = 0.01, 0.2  # of one sample: together, long against the turns that ranks take on shared cores
TOLERANCE = 1e-9
NAME = next(name for name, dtype in DTYPES.items() if dtype is DTYPE)


class Unmeasurable(Exception):
    """Why there is no figure, the end of a sentence."""


def stream(ranks: AtOnce, device: torch.device, array_bytes: int | None, repeats: int, time_budget_s: float) -> Stream:
    """So many repeats of each kernel on arrays of so many bytes (None: by the cache), fewer where the budget ends.

    Collective. Raises Unmeasurable, on all ranks, where the arrays don't fit or end up with wrong numbers.
    """
    start = time.perf_counter()
    cache = last_level_bytes(device)
    arrays = _allocated(ranks, device, array_bytes, cache)
    rates: dict[str, list[float]] = {kernel.name: [] for kernel in KERNELS}
    for done, row in enumerate(_rounds(ranks, arrays)):
        for kernel, rate in zip(KERNELS, row, strict=True):
            rates[kernel.name].append(rate)
        spent_s = time.perf_counter() - start
        enough = done + 1 >= FEWEST and spent_s * (done + 3) / (done + 2) > time_budget_s  # with the warm-up
        if done + 1 >= repeats or ranks.obstacle("out of time" if enough else None):
            break
    worst = float(ranks.everyone([arrays.error()]).max())
    if worst > TOLERANCE:
        raise Unmeasurable(
            f"the arrays are off by {worst:.2g} of what they should hold: the memory or PyTorch is at fault"
        )
    found = tuple(
        StreamKernel(
            name=kernel.name,
            arrays=kernel.arrays,
            best_bytes_per_s=max(rates[kernel.name]),
            median_bytes_per_s=median(rates[kernel.name]),
        )
        for kernel in KERNELS
    )
    return Stream(array_bytes=arrays.array_bytes, cache_bytes=cache, repeats=len(rates["copy"]), kernels=found)


def run_memory(
    launch: Launch, *, device: str, array_bytes: float | None, repeats: int, time_budget_s: float,
    timeouts: Timeouts = Timeouts(), labels: dict[str, str], out: Path,
) -> Result:  # fmt: skip
    """Measure and, on rank 0, write result.json; one that is "failed" says why. Raises UsageError."""
    if array_bytes is not None and not SMALLEST_ARRAY <= array_bytes < 2**50:
        raise UsageError(f"An array has {SMALLEST_ARRAY} bytes or more, but {array_bytes:g} were given.")
    if repeats < FEWEST:
        raise UsageError(f"A kernel is repeated {FEWEST} times or more, but {repeats} was given.")
    check_budget(time_budget_s)
    target = choose_device(device, launch.local_rank)
    config = {"array_bytes": array_bytes, "repeats": repeats, "time_budget_s": time_budget_s}
    begun = Begun("memory", launch, target, config=config, dtype=NAME, labels=labels, out=out)
    found, reason = None, None
    try:
        with at_once(launch, target, timeouts, begun) as ranks:
            try:
                found = stream(ranks, target, None if array_bytes is None else int(array_bytes), repeats, time_budget_s)
            except Unmeasurable as error:
                reason = f"No bandwidth could be measured: {error}."
    except LOST as error:
        reason = f"No bandwidth could be measured: it failed with: {first_line(error)}."
    for kernel in found.kernels if found else ():
        best, middle = kernel.best_bytes_per_s / 1e9, kernel.median_bytes_per_s / 1e9
        log.info("%s: best %.3g GB/s, median %.3g GB/s", kernel.name, best, middle)
    return begun.end(reason, stream=found)


def _allocated(ranks: AtOnce, device: torch.device, array_bytes: int | None, cache: int | None) -> Arrays:
    """Of the same size on all ranks."""
    free = free_bytes(device) // (ranks.on_machine if device.type == "cpu" else 1)
    if array_bytes is None:
        most = free // 2 // 3
        wanted = min(max(CACHES * (cache or 0), USUAL_ARRAY[device.type]), most)
        array_bytes = int(ranks.everyone([max(wanted, SMALLEST_ARRAY)]).min())
    too_large = None
    if 3 * array_bytes > free:
        too_large = (
            f"three arrays of {array_bytes / 1e9:.3g} GB need {3 * array_bytes / 1e9:.3g} GB of memory and "
            f"{free / 1e9:.3g} GB are free"
        )
    if why := ranks.obstacle(too_large):
        raise Unmeasurable(why)
    arrays = None
    try:
        arrays = Arrays(array_bytes, device)
    except RuntimeError as error:
        why = first_line(error)
    if (why := ranks.obstacle(why)) or arrays is None:
        raise Unmeasurable(f"the arrays can't be allocated: {why}")
    return arrays


def _rounds(ranks: AtOnce, arrays: Arrays) -> Iterator[list[float]]:
    """Rates of the kernels, round after round; a first round warms up."""
    window_s = ALONE_S if ranks.count == 1 else TOGETHER_S
    warm = False
    while True:
        rates = []
        for kernel in KERNELS:
            ranks.meet()
            rates += ranks.mean([arrays.rate(kernel, window_s)])
        if warm:
            yield rates
        warm = True
