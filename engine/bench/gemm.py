"""Measure the empirical peak by square matrix multiplications of growing size (axonn-sc24 VI-C).

The paper's peaks (280 Tflop/s of an A100's 312 and 125 of an MI250X GCD's 191.5) are the best of sizes 1024
to 65536 in bf16, on one device. Under a launcher all ranks multiply at once, each with as many threads as it would
train with, and the rate is what one of them reaches on average: cores, caches and power are shared.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_args

import torch

from engine.bench.frame import Benchmark, Table, check_measurable, parse_doubling
from engine.bench.world import LOST, Unmeasurable, World, first_line
from engine.comm.launch import Launch
from engine.errors import UsageError
from engine.measure.gemm import FEWEST, WINDOW_S, GemmTimer, full_precision
from engine.precision import DTYPES
from engine.result import provenance
from engine.result.metrics import gemm_rate
from engine.result.schema import Result
from engine.result.schema.bench import GemmPoint, ProductMode

log = logging.getLogger(__name__)

LARGEST = 1 << 20
SMALLEST_PROBE = 64
MODES: tuple[ProductMode, ...] = get_args(ProductMode)
ROUNDS = 3
TF32 = "tf32"
FORMATS = {**DTYPES, TF32: torch.float32}


@dataclass(frozen=True, slots=True)
class Gemm(Benchmark):
    """Rates of products of square matrices. dtype: one of FORMATS. sizes: ascending."""

    dtype: str
    sizes: tuple[int, ...]
    time_budget_s: float

    kind = "gemm"
    unmeasured = "No size could be measured"
    lost = "The ranks failed with"

    def check(self, launch: Launch, device: torch.device) -> None:
        if self.dtype not in FORMATS:
            raise UsageError(f"A dtype is one of {', '.join(FORMATS)}, but {self.dtype!r} was given.")
        check_measurable("A size", time_budget_s=self.time_budget_s)
        nvidia = device.type == "cuda" and not torch.version.hip
        if self.dtype == TF32 and not (nvidia and torch.cuda.get_device_capability(device) >= (8, 0)):
            name = provenance.device_name(device)
            raise UsageError(f"The dtype tf32 is one of NVIDIA GPUs from the A100 on, but this is {name}: take fp32.")

    @property
    def config(self) -> dict[str, Any]:
        return asdict(self) | {"sizes": list(self.sizes), "tf32": self.dtype == TF32}

    def measure(self, world: World, found: dict[str, Any]) -> None:
        """Keep what was measured before other ranks were lost."""
        points: list[GemmPoint] = []
        start = time.perf_counter()
        try:
            for point in self.points(world):
                points.append(point)
            found["gemm_modes"] = self.by_mode(points, self.time_budget_s - (time.perf_counter() - start), world)
        except LOST as error:
            lost = f"failed with: {first_line(error)}"
            points += [GemmPoint(size=size, skipped=lost) for size in self.sizes[len(points) :]]
            raise
        finally:
            rates = [point.flops_per_s for point in points if point.flops_per_s is not None]
            found |= {"gemm": tuple(points), "best_flops_per_s": max(rates, default=None)}
        if not rates:
            raise Unmeasurable(f"{points[0].size} was skipped as it {points[0].skipped}")

    def points(self, world: World) -> Iterator[GemmPoint]:
        """Yield the rate of n x n times n x n for each size as soon as it is known. Collective.

        Of one rank alone it is the median of several samples; of all at once what they reach on average. A size that
        doesn't fit the free memory, or what is left of the budget (predicted from the size before by n^3, for the first
        from smaller ones that are not reported), is skipped and says so: the slowest and fullest rank decides.
        """
        start = time.perf_counter()
        last: GemmPoint | None = None
        probes = [probe for shift in (9, 6, 3) if (probe := self.sizes[0] >> shift) >= SMALLEST_PROBE]
        for place, size in enumerate((*probes, *self.sizes)):
            left_s = self.time_budget_s - (time.perf_counter() - start)
            skipped = world.obstacle(self._obstacle(size, last, left_s, world))
            point = GemmPoint(size=size, skipped=skipped) if skipped else self._point(size, "NN", left_s, world)
            last = point if point.skipped is None else last
            log.info("%d x %d: %s", size, size, _rate(point))
            if place >= len(probes):
                yield point

    def by_mode(self, points: Sequence[GemmPoint], left_s: float, world: World) -> tuple[GemmPoint, ...]:
        """Measure every mode in turns, and return the median of ROUNDS. Collective.

        The size is the largest of those measured that fits the time; nothing is returned where none fits, or where a
        mode can't be measured.
        """

        def in_time(point: GemmPoint) -> bool:
            if point.median_time_s is None:
                return False
            predicted_s = ROUNDS * len(MODES) * (WINDOW_S + 5 * point.median_time_s)
            return world.obstacle(_late(predicted_s, left_s)) is None

        fits = (point.size for point in sorted(points, key=lambda point: -point.size) if in_time(point))
        size = next(fits, None)
        if size is None:
            return ()
        rounds = [[self._point(size, mode, WINDOW_S, world) for mode in MODES] for _ in range(ROUNDS)]
        if any(point.skipped for measured in rounds for point in measured):
            return ()
        by_rate = (sorted(of, key=lambda point: point.flops_per_s or 0.0) for of in zip(*rounds, strict=True))
        middle = tuple(of[ROUNDS // 2] for of in by_rate)
        for point in middle:
            log.info("%s, %d x %d: %s", point.mode, size, size, _rate(point))
        return middle

    @staticmethod
    def table(result: Result) -> Table:
        measured = [(point.size, point.flops_per_s) for point in result.gemm if point.flops_per_s is not None]
        return (f"{result.dtype} matrices", "Tflop/s"), [(f"{n} x {n}", f"{rate / 1e12:.4g}") for n, rate in measured]

    def _obstacle(self, size: int, last: GemmPoint | None, left_s: float, world: World) -> str | None:
        """Say why this rank can't measure this size, or return None."""
        if lack := world.lack(3 * size * size * FORMATS[self.dtype].itemsize):
            return f"needs {lack}"
        if last is not None and last.median_time_s is not None:
            return _late((FEWEST + 1) * last.median_time_s * (size / last.size) ** 3, left_s)
        return None

    def _point(self, size: int, mode: ProductMode, left_s: float, world: World) -> GemmPoint:
        """Measure a size; one that a rank can't multiply after all is skipped by all of them."""
        with full_precision(tf32=self.dtype == TF32):
            try:
                timer = world.attempt(lambda: GemmTimer(size, FORMATS[self.dtype], world.device, mode), "failed with")
                if world.size == 1:
                    time_s, calls = world.attempt(lambda: timer.median_s(left_s), "failed with")
                    rate = gemm_rate(size, 1, time_s)
                    return GemmPoint(size=size, mode=mode, flops_per_s=rate, median_time_s=time_s, repeats=calls)
            except Unmeasurable as error:
                return GemmPoint(size=size, mode=mode, skipped=str(error))
            world.comm.barrier()
            calls, passed_s = timer.sustained(WINDOW_S, world.ranks_per_core)
            rate = world.mean([gemm_rate(size, calls, passed_s)])[0]
            fewest = int(world.gather_rows([calls]).min())
        time_s = 2 * size**3 / rate
        return GemmPoint(size=size, mode=mode, flops_per_s=rate, median_time_s=time_s, repeats=fewest)


def parse_sizes(text: str) -> tuple[int, ...]:
    """Read "1024..65536", which doubles, or "1000,3000". Sizes ascend, each once. Raises UsageError."""
    sizes = parse_doubling(text, r"\d{1,7}", int, LARGEST)
    if not sizes or not 1 <= min(sizes) <= max(sizes) <= LARGEST:
        raise UsageError(
            f"Sizes are written FIRST..LAST (doubling) or as a comma list, of numbers from 1 to {LARGEST}, "
            f"such as 1024..65536, but {text!r} was given."
        )
    return tuple(sorted(sizes))


def _rate(point: GemmPoint) -> str:
    return f"{point.flops_per_s / 1e9:.1f} Gflop/s" if point.flops_per_s else f"skipped: {point.skipped}"


def _late(predicted_s: float, left_s: float) -> str | None:
    if predicted_s <= left_s:
        return None
    return f"would take about {predicted_s:.3g} s and {max(left_s, 0):.3g} s of the time budget are left"
