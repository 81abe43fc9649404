"""The empirical peak: square matrix multiplications of growing size (axonn-sc24 VI-C).

The paper's peaks (280 Tflop/s of an A100's 312 and 125 of an MI250X GCD's 191.5) are the best of sizes 1024
to 65536 in bf16, on one device. Under a launcher all ranks multiply at once, each with as many threads as it would
train with, and the rate is what one of them reaches on average: cores, caches and power are shared.
"""

import logging
import re
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from engine.comm.funnel import Comm
from engine.comm.launch import Launch, choose_device, init_process_group
from engine.errors import UsageError
from engine.grid import Grid
from engine.measure.gemm import FEWEST, Product, full_precision, joint
from engine.measure.memory import free_host_bytes
from engine.precision import DTYPES
from engine.result import provenance
from engine.result.metrics import gemm_rate
from engine.result.schema import GemmPoint, Result, write

log = logging.getLogger(__name__)

LARGEST = 1 << 20
SMALLEST_PROBE = 64
MEETING = timedelta(minutes=5)


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
    """The rate of n x n times n x n for each size, ascending, on one device: the median of several samples.

    A size that doesn't fit the free memory, or what is left of the budget (predicted from the size before by n^3, for
    the first from smaller ones that are not reported), is skipped and says so.
    """
    start = time.perf_counter()
    points: list[GemmPoint] = []
    last: GemmPoint | None = None
    with full_precision():
        probes = (sizes[0] >> shift for shift in (9, 6, 3))
        for size in (*(probe for probe in probes if probe >= SMALLEST_PROBE), *sizes):
            left_s = time_budget_s - (time.perf_counter() - start)
            point = GemmPoint(size=size, skipped=_obstacle(size, dtype, device, last, left_s))
            if point.skipped is None:
                last = point = _measure(size, dtype, device, left_s)
            log.info("%d x %d: %s", size, size, _told(point))
            points.append(point)
    return tuple(points[-len(sizes) :])


def joint_gemm(comm: Comm, dtype: torch.dtype, sizes: tuple[int, ...], time_budget_s: float) -> tuple[GemmPoint, ...]:
    """The same on all ranks at once: flop/s of one of them, the mean. Collective.

    A size is skipped, on all ranks, by the same rules; the slowest and fullest decides.
    """
    start = time.perf_counter()
    points: list[GemmPoint] = []
    last: GemmPoint | None = None
    for size in sizes:
        left_s = time_budget_s - (time.perf_counter() - start)
        obstacle = _obstacle(size, dtype, comm.device, last, left_s, ranks=comm.grid.size)
        if comm.everyone(torch.tensor([obstacle is not None])).any():
            points.append(GemmPoint(size=size, skipped=obstacle or "can't be measured on another rank"))
            continue
        rates = comm.everyone(torch.tensor(joint(size, dtype, comm.device, comm.barrier), dtype=torch.float64))
        rate, repeats = rates[:, 0].mean().item(), int(rates[:, 1].min().item())
        points.append(last := GemmPoint(size=size, flops_per_s=rate, median_time_s=2 * size**3 / rate, repeats=repeats))
        log.info("%d x %d on %d ranks at once: %s each", size, size, comm.grid.size, _told(points[-1]))
    return tuple(points)


def run_gemm(
    launch: Launch, *, dtype: str, sizes: str, device: str, time_budget_s: float, labels: dict[str, str], out: Path
) -> Result:
    """Measure and, on rank 0, write result.json; it is "failed" if every size was skipped. Raises UsageError."""
    if dtype not in DTYPES:
        raise UsageError(f"A dtype is one of {', '.join(DTYPES)}, but {dtype!r} was given.")
    if not time_budget_s > 0:
        raise UsageError(f"A time budget is a positive number of seconds, but {time_budget_s:g} was given.")
    numbers = parse_sizes(sizes)
    target = choose_device(device, launch.local_rank)
    start = provenance.now()
    try:
        if launch.world_size == 1:
            points = gemm(DTYPES[dtype], numbers, target, time_budget_s)
        else:
            init_process_group(launch, target, MEETING)
            comm = Comm(Grid(data=launch.world_size), timeout=MEETING, device=target)
            points = joint_gemm(comm, DTYPES[dtype], numbers, time_budget_s)
            comm.barrier()
            dist.destroy_process_group()
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
        config=config | {"threads": torch.get_num_threads(), "tf32": False},
        ranks=launch.world_size,
        dtype=dtype,
        gemm=points,
        best_flops_per_s=max(rates, default=None),
        provenance=provenance.collect(start=start, launcher=launch.launcher, devices=[provenance.device_name(target)]),
    )
    if launch.rank == 0:
        write(result, out)
    return result


def _told(point: GemmPoint) -> str:
    return f"{point.flops_per_s / 1e9:.1f} Gflop/s" if point.flops_per_s else f"skipped: {point.skipped}"


def _obstacle(
    size: int, dtype: torch.dtype, device: torch.device, last: GemmPoint | None, left_s: float, ranks: int = 1
) -> str | None:
    """Why this size can't be measured, or None. ranks: that may share the memory."""
    needed, free = 3 * size * size * dtype.itemsize, free_bytes(device)
    if device.type == "cpu":
        needed *= ranks
    if needed > free:
        return f"needs {needed / 1e9:.3g} GB of memory and {free / 1e9:.3g} GB are free"
    if last is not None and last.median_time_s is not None:
        predicted_s = (FEWEST + 1) * last.median_time_s * (size / last.size) ** 3
        if predicted_s > left_s:
            return f"would take about {predicted_s:.3g} s and {max(left_s, 0):.3g} s of the time budget are left"
    return None


def _measure(size: int, dtype: torch.dtype, device: torch.device, left_s: float) -> GemmPoint:
    try:
        median_s, repeats = Product(size, dtype, device).median_s(left_s)
    except torch.OutOfMemoryError:
        return GemmPoint(size=size, skipped="ran out of memory although it seemed to fit")
    return GemmPoint(size=size, flops_per_s=gemm_rate(size, 1, median_s), median_time_s=median_s, repeats=repeats)


def free_bytes(device: torch.device) -> int:
    """Memory that can be allocated now."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return free_host_bytes()
