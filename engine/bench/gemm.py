"""The empirical peak: square matrix multiplications of growing size (axonn-sc24 VI-C).

The paper's peaks (280 Tflop/s of an A100's 312 and 125 of an MI250X GCD's 191.5) are the best of sizes 1024
to 65536 in bf16, on one device. Under a launcher all ranks multiply at once, each with as many threads as it would
train with, and the rate is what one of them reaches on average: cores, caches and power are shared.
"""

import logging
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import get_args

import torch

from engine.bench.at_once import LOST, AtOnce, at_once, check_budget, first_line
from engine.bench.record import Begun
from engine.comm.launch import Launch, choose_device
from engine.errors import UsageError
from engine.measure.gemm import FEWEST, FORMATS, TF32, WINDOW_S, Product, full_precision
from engine.measure.memory import free_host_bytes
from engine.result import provenance
from engine.result.device import GemmPoint, Mode
from engine.result.metrics import gemm_rate
from engine.result.schema import Result
from engine.timeouts import Timeouts

log = logging.getLogger(__name__)

LARGEST = 1 << 20
SMALLEST_PROBE = 64
MODES: tuple[Mode, ...] = get_args(Mode)
TURNS = 3


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
    form: str, sizes: tuple[int, ...], device: torch.device, time_budget_s: float, ranks: AtOnce
) -> Iterator[GemmPoint]:
    """The rate of n x n times n x n for each size, ascending, as soon as it is known. form: one of FORMATS. Collective.

    Of one rank alone the median of several samples; of all at once what they reach on average. A size that doesn't fit
    the free memory, or what is left of the budget (predicted from the size before by n^3, for the first from smaller
    ones that are not reported), is skipped and says so: the slowest and fullest rank decides.
    """
    start = time.perf_counter()
    dtype = FORMATS[form]
    last: GemmPoint | None = None
    probes = [probe for shift in (9, 6, 3) if (probe := sizes[0] >> shift) >= SMALLEST_PROBE]
    for place, size in enumerate((*probes, *sizes)):
        left_s = time_budget_s - (time.perf_counter() - start)
        skipped = ranks.obstacle(_obstacle(size, dtype, device, last, left_s, ranks.on_machine))
        if skipped is None:
            with full_precision(tf32=form == TF32):
                point = _measure(size, dtype, device, left_s, ranks)
        else:
            point = GemmPoint(size=size, skipped=skipped)
        last = point if point.skipped is None else last
        log.info("%d x %d: %s", size, size, _told(point))
        if place >= len(probes):
            yield point


def by_mode(
    form: str, points: Sequence[GemmPoint], device: torch.device, left_s: float, ranks: AtOnce
) -> tuple[GemmPoint, ...]:
    """The largest of the measured sizes that fits the time in every mode: in turns, the median of TURNS. Collective.

    Nothing where none fits, or where a mode can't be measured.
    """

    def in_time(point: GemmPoint) -> bool:
        if point.median_time_s is None:
            return False
        predicted_s = TURNS * len(MODES) * (WINDOW_S + 5 * point.median_time_s)
        return ranks.obstacle(_late(predicted_s, left_s)) is None

    fits = (point.size for point in sorted(points, key=lambda point: -point.size) if in_time(point))
    size = next(fits, None)
    if size is None:
        return ()
    found: dict[Mode, list[GemmPoint]] = {mode: [] for mode in MODES}
    with full_precision(tf32=form == TF32):
        for _ in range(TURNS):
            for mode in MODES:
                found[mode].append(_measure(size, FORMATS[form], device, WINDOW_S, ranks, mode))
    if any(point.skipped for measured in found.values() for point in measured):
        return ()
    middle = [sorted(of, key=lambda point: point.flops_per_s or 0.0)[TURNS // 2] for of in found.values()]
    for point in middle:
        log.info("%s, %d x %d: %s", point.mode, size, size, _told(point))
    return tuple(middle)


def run_gemm(
    launch: Launch, *, dtype: str, sizes: str, device: str, time_budget_s: float, timeouts: Timeouts = Timeouts(),
    labels: dict[str, str], out: Path,
) -> Result:  # fmt: skip
    """Measure and, on rank 0, write result.json; it is "failed" if every size was skipped. Raises UsageError."""
    if dtype not in FORMATS:
        raise UsageError(f"A dtype is one of {', '.join(FORMATS)}, but {dtype!r} was given.")
    check_budget(time_budget_s)
    numbers = parse_sizes(sizes)
    target = choose_device(device, launch.local_rank)
    if dtype == TF32:
        _check_tf32(target)
    config = {"dtype": dtype, "sizes": list(numbers), "time_budget_s": time_budget_s, "tf32": dtype == TF32}
    begun = Begun("gemm", launch, target, config=config, dtype=dtype, labels=labels, out=out)
    points: list[GemmPoint] = []
    modes: tuple[GemmPoint, ...] = ()
    lost, began_s = None, time.perf_counter()
    try:
        with at_once(launch, target, timeouts, begun) as ranks:
            for point in gemm(dtype, numbers, target, time_budget_s, ranks):
                points.append(point)
            modes = by_mode(dtype, points, target, time_budget_s - (time.perf_counter() - began_s), ranks)
    except LOST as error:
        lost = f"failed with: {first_line(error)}"
        points += [GemmPoint(size=size, skipped=lost) for size in numbers[len(points) :]]
    rates = [point.flops_per_s for point in points if point.flops_per_s is not None]
    reason = f"The ranks {lost}." if lost else None
    if not rates:
        reason = f"No size could be measured: {points[0].size} was skipped as it {points[0].skipped}."
    return begun.end(reason, gemm=tuple(points), gemm_modes=modes, best_flops_per_s=max(rates, default=None))


def _check_tf32(device: torch.device) -> None:
    """Raises UsageError where fp32 would be measured instead."""
    if device.type != "cuda" or torch.version.hip or torch.cuda.get_device_capability(device) < (8, 0):
        name = provenance.device_name(device)
        raise UsageError(f"The dtype tf32 is one of NVIDIA GPUs from the A100 on, but this is {name}: take fp32.")


def _told(point: GemmPoint) -> str:
    return f"{point.flops_per_s / 1e9:.1f} Gflop/s" if point.flops_per_s else f"skipped: {point.skipped}"


def _obstacle(
    size: int, dtype: torch.dtype, device: torch.device, last: GemmPoint | None, left_s: float, ranks: int
) -> str | None:
    """Why this size can't be measured, or None. ranks: that share the machine's memory."""
    needed, free = 3 * size * size * dtype.itemsize, free_bytes(device)
    if device.type == "cpu":
        needed *= ranks
    if needed > free:
        return f"needs {needed / 1e9:.3g} GB of memory and {free / 1e9:.3g} GB are free"
    if last is not None and last.median_time_s is not None:
        return _late((FEWEST + 1) * last.median_time_s * (size / last.size) ** 3, left_s)
    return None


def _late(predicted_s: float, left_s: float) -> str | None:
    if predicted_s <= left_s:
        return None
    return f"would take about {predicted_s:.3g} s and {max(left_s, 0):.3g} s of the time budget are left"


def _measure(
    size: int, dtype: torch.dtype, device: torch.device, left_s: float, ranks: AtOnce, mode: Mode = "NN"
) -> GemmPoint:
    """A size that a rank can't multiply after all is skipped by all of them."""
    why = None
    try:
        product = Product(size, dtype, device, mode)
        if ranks.count == 1:
            median_s, calls = product.median_s(left_s)
            rate = gemm_rate(size, 1, median_s)
            return GemmPoint(size=size, mode=mode, flops_per_s=rate, median_time_s=median_s, repeats=calls)
    except torch.OutOfMemoryError:
        why = "ran out of memory although it seemed to fit"
    except RuntimeError as error:  # how torch reports a dtype or a device that doesn't work
        why = f"failed with: {first_line(error)}"
    if why := ranks.obstacle(why):
        return GemmPoint(size=size, mode=mode, skipped=why)
    ranks.meet()
    rate, calls = product.sustained(WINDOW_S)
    rate, fewest = ranks.mean([rate])[0], int(ranks.everyone([calls]).min())
    return GemmPoint(size=size, mode=mode, flops_per_s=rate, median_time_s=2 * size**3 / rate, repeats=fewest)


def free_bytes(device: torch.device) -> int:
    """Memory that can be allocated now."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return free_host_bytes()
