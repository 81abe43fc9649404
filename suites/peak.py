"""Rates that a device reaches in matrix products of growing size (axonn-sc24 VI-C), memory and launches.

    reframe -c suites/peak.py --system perlmutter
    reframe -c suites/peak.py --system alps -n Peak -P dtype=tf32

An accelerator is measured alone. On processors, which ranks share, a rank is measured while as many others do the same
as a point of the system's weak scaling has.
"""

import reframe as rfm
from reframe.core.builtins import parameter, run_after, variable

from suites.base.engine_test import EngineTest, command
from suites.base.figures import Figures
from suites.base.running import NIGHTLY, Worth
from suites.base.series import CALIBRATION, points
from suites.base.training import SYSTEM

SIZES = {"cuda": "1024..65536", "cpu": "256..4096"}
TIME_BUDGET_S = {"cuda": 90, "cpu": 12}
SHORT = {"cuda": "3m", "cpu": "2m"}
"""The time limit of what takes seconds: most of it is for a cold file system, or for others on the processors."""
RANKS = sorted({point.devices for point in points("weak_scaling", SYSTEM.name)}) if SYSTEM.device.kind == "cpu" else [1]
CALIBRATED = points(CALIBRATION, SYSTEM.name)[0]
DTYPES = [
    name
    for name in ("bf16", "fp32", "fp64")
    if SYSTEM.device.kind == "cpu" or name in SYSTEM.device.peak_flops or name == CALIBRATED.series.precision
]


class DeviceTest(EngineTest):
    """A measurement of a device by `engine bench`, on so many ranks at once.

    time_budget_s: what would take longer is left out; by default the largest matrices get done. Of several numbers of
    ranks and formats the one that a training takes is measured every night.
    """

    study = "peak"
    tags = {"peak"}
    tags_of_the_usual = {NIGHTLY, CALIBRATION}
    ranks = parameter(RANKS, type=int, loggable=True)
    time_budget_s = variable(float, type(None), value=None)
    time_limit = SHORT[SYSTEM.device.kind]

    @run_after("init")
    def take_ranks(self) -> None:
        self.num_tasks = self.ranks
        if self.is_usual():
            self.tags = self.tags | self.tags_of_the_usual

    def is_usual(self) -> bool:
        """Say whether the trainings whose figures the performance model takes have as many ranks."""
        return self.device == "cuda" or self.ranks == CALIBRATED.devices

    @property
    def budget_s(self) -> float:
        return float(TIME_BUDGET_S[self.device] if self.time_budget_s is None else self.time_budget_s)


@rfm.simple_test
class Peak(DeviceTest):
    """`engine bench gemm`. dtype: each that the device has a peak of; TF32 only where -P asks for it. sizes: "" takes
    those that the device needs to reach its peak.
    """

    descr = "GEMM peak of one device"
    worth = Worth.PRODUCTS
    dtype = parameter(DTYPES, type=str, loggable=True)
    sizes = variable(str, value="")

    @property
    def number_format(self) -> str:
        return str(self.dtype)

    def is_usual(self) -> bool:
        return super().is_usual() and self.dtype == CALIBRATED.series.precision

    def options(self) -> list[str]:
        words = command("bench gemm", dtype=self.dtype, sizes=self.sizes or SIZES[self.device])
        return words + command("", device=self.device, time_budget=self.budget_s)

    def figures(self) -> Figures:
        return {"best_flops_per_s": (self.record["best_flops_per_s"], "flop/s")}


@rfm.simple_test
class MemoryBandwidth(DeviceTest):
    """`engine bench memory`: the best repeat of each kernel of STREAM. array_bytes: 0 is the engine's default."""

    descr = "memory bandwidth of one device"
    worth = Worth.MEMORY
    array_bytes = variable(int, value=0)

    def options(self) -> list[str]:
        size = self.array_bytes or None
        return command("bench memory", device=self.device, time_budget=self.budget_s, array_size=size)

    def figures(self) -> Figures:
        return {kernel["name"]: (kernel["best_bytes_per_s"], "B/s") for kernel in self.record["stream"]["kernels"]}


@rfm.simple_test
class LaunchLatency(DeviceTest):
    """`engine bench latency`: the median time of a tiny operator, for each way to launch it."""

    descr = "launch latency of one device"
    worth = Worth.LAUNCHES
    tags_of_the_usual = {NIGHTLY}

    def options(self) -> list[str]:
        return command("bench latency", device=self.device)

    def figures(self) -> Figures:
        return {launched["name"]: (launched["median_s"], "s") for launched in self.record["launches"]}
