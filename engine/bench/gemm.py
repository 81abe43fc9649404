"""The empirical peak of one device: square matrix multiplications of growing size (axonn-sc24 VI-C).

The paper's peaks (280 Tflop/s of an A100's 312 and 125 of an MI250X GCD's 191.5) are the best of sizes 1024
to 65536 in bf16. A multiplication of n x n matrices counts 2 n^3.
"""

import logging
import os
import re
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from engine.comm.launch import choose_device
from engine.errors import UsageError
from engine.measure.memory import free_host_bytes
from engine.precision import DTYPES
from engine.result import provenance
from engine.result.schema import GemmPoint, Result, write

log = logging.getLogger(__name__)

LARGEST = 1 << 20
SMALLEST_PROBE = 64
TARGET_S = 1.0  # time to spend on one size
SAMPLE_S = 0.002  # below this a sample is several multiplications, so that the clock and the launch don't show
FEWEST, MOST = 3, 30  # samples of one size


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read "1024..65536" (doubling) or "1000,3000" (those). Ascending, each once. Raises UsageError."""
    if match := re.fullmatch(r"(\d{1,7})\.\.(\d{1,7})", text):
        first, last = map(int, match.groups())
        sizes = {first << step for step in range(21) if first << step <= last <= LARGEST}
    elif re.fullmatch(r"\d{1,7}(,\d{1,7})*", text):
        sizes = set(map(int, text.split(",")))
    else:
        sizes = set()
    if not sizes or not 1 <= min(sizes) <= max(sizes) <= LARGEST:
        raise UsageError(
            f"Sizes are written FIRST..LAST (doubling) or as a comma list, of numbers from 1 to {LARGEST}, "
            f"such as 1024..65536, but {text!r} was given."
        )
    return tuple(sorted(sizes))


def gemm(
    dtype: torch.dtype, sizes: tuple[int, ...], device: torch.device, time_budget_s: float
) -> tuple[GemmPoint, ...]:
    """The rate of n x n times n x n for each size, ascending: the median of several samples after a warm-up.

    A size that doesn't fit the free memory, or what is left of the budget (predicted from the size before by n^3, for
    the first from smaller ones that are not reported), is skipped and says so. fp32 means fp32: no TF32.
    """
    start = time.perf_counter()
    points: list[GemmPoint] = []
    last: GemmPoint | None = None
    with _full_speed(device):
        probes = (sizes[0] >> shift for shift in (9, 6, 3))
        for size in (*(probe for probe in probes if probe >= SMALLEST_PROBE), *sizes):
            left_s = time_budget_s - (time.perf_counter() - start)
            point = GemmPoint(size=size, skipped=_obstacle(size, dtype, device, last, left_s))
            if point.skipped is None:
                last = point = _measure(size, dtype, device, left_s)
            rate = f"{point.flops_per_s / 1e9:.1f} Gflop/s" if point.flops_per_s else f"skipped: {point.skipped}"
            log.info("%d x %d: %s", size, size, rate)
            points.append(point)
    return tuple(points[-len(sizes) :])


def run_gemm(*, dtype: str, sizes: str, device: str, time_budget_s: float, labels: dict[str, str], out: Path) -> Result:
    """Measure and write result.json; its status is "failed" if every size was skipped. Raises UsageError."""
    if dtype not in DTYPES:
        raise UsageError(f"A dtype is one of {', '.join(DTYPES)}, but {dtype!r} was given.")
    if not time_budget_s > 0:
        raise UsageError(f"A time budget is a positive number of seconds, but {time_budget_s:g} was given.")
    numbers = parse_sizes(sizes)
    target = choose_device(device, 0)
    start = provenance.now()
    try:
        points = gemm(DTYPES[dtype], numbers, target, time_budget_s)
    except RuntimeError as error:  # how torch reports a dtype or a device that doesn't work
        why = f"failed with: {str(error).strip().splitlines()[0]}"
        points = tuple(GemmPoint(size=size, skipped=why) for size in numbers)
    rates = [point.flops_per_s for point in points if point.flops_per_s is not None]
    config = {"dtype": dtype, "sizes": list(numbers), "device": target.type, "time_budget_s": time_budget_s}
    result = Result(
        kind="gemm",
        status="ok" if rates else "failed",
        reason=None if rates else f"No size could be measured: {points[0].size} was skipped as it {points[0].skipped}.",
        labels=labels,
        config=config | ({"threads": _processors()} if target.type == "cpu" else {"tf32": False}),
        ranks=1,
        dtype=dtype,
        gemm=points,
        best_flops_per_s=max(rates, default=None),
        provenance=provenance.collect(start=start, launcher="none", devices=[provenance.device_name(target)]),
    )
    write(result, out)
    return result


def _obstacle(size: int, dtype: torch.dtype, device: torch.device, last: GemmPoint | None, left_s: float) -> str | None:
    """Why this size can't be measured, or None."""
    needed, free = 3 * size * size * dtype.itemsize, free_bytes(device)
    if needed > free:
        return f"needs {needed / 1e9:.3g} GB of memory and {free / 1e9:.3g} GB are free"
    if last is not None and last.median_time_s is not None:
        predicted_s = (FEWEST + 1) * last.median_time_s * (size / last.size) ** 3
        if predicted_s > left_s:
            return f"would take about {predicted_s:.3g} s and {max(left_s, 0):.3g} s of the time budget are left"
    return None


def _measure(size: int, dtype: torch.dtype, device: torch.device, left_s: float) -> GemmPoint:
    generator = torch.Generator(device).manual_seed(size)
    try:
        a, b = (torch.randn(size, size, dtype=dtype, device=device, generator=generator) for _ in range(2))
        c = torch.empty(size, size, dtype=dtype, device=device)
        _sample(a, b, c, 1)
        once_s = _sample(a, b, c, 1)
        calls = max(1, round(SAMPLE_S / max(once_s, 1e-6)))
        budget_s = min(TARGET_S, left_s - 2 * once_s)
        count = min(MOST, max(FEWEST, int(budget_s / (calls * once_s))))
        median_s = statistics.median(_sample(a, b, c, calls) for _ in range(count))
    except torch.OutOfMemoryError:
        return GemmPoint(size=size, skipped="ran out of memory although it seemed to fit")
    return GemmPoint(size=size, flops_per_s=2 * size**3 / median_s, median_time_s=median_s, repeats=count * calls)


def _sample(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, calls: int) -> float:
    """Seconds of one multiplication, as the mean of several in a row."""
    if a.device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            torch.matmul(a, b, out=c)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / calls
    start = time.perf_counter()
    for _ in range(calls):
        torch.matmul(a, b, out=c)
    return (time.perf_counter() - start) / calls


def free_bytes(device: torch.device) -> int:
    """Memory that can be allocated now."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return free_host_bytes()


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _full_speed(device: torch.device) -> Iterator[None]:
    """All processors on a CPU, whatever OMP_NUM_THREADS says, and full fp32; as before afterwards."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    if device.type == "cpu":
        torch.set_num_threads(_processors())
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
