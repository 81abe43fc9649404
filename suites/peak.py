"""Rates that a device reaches in matrix products of growing size (axonn-sc24 VI-C), memory and launches, and the flops
of a training step beside the formula that utilisation takes.

    reframe -c suites/peak.py --system perlmutter
    reframe -c suites/peak.py --system alps -n Peak -P dtype=tf32

An accelerator is measured alone. On processors, which ranks share, a rank is measured while as many others do the same
as a point of the system's weak scaling has.
"""

import reframe as rfm
from reframe.core.builtins import parameter, run_after, variable

from engine.result.metrics import formula_over_counted
from engine.result.schema import Result, parse
from suites.base.counted_flops import check_formula
from suites.base.engine_test import EngineTest, command
from suites.base.figures import Figures
from suites.base.running import NIGHTLY, Worth
from suites.base.series import CALIBRATION, points
from suites.base.training import SYSTEM

SIZES = {"cuda": "1024..65536", "cpu": "256..4096"}
TIME_BUDGET_S = {"cuda": 90, "cpu": 12}
SHORT = {"cuda": "3m", "cpu": "2m"}
"""The time limit of what takes seconds: most of it is for a cold file system, or for others on the processors."""
OF_ONE_DEVICE = {"cuda": ("gpt-5b", 2, "bf16"), "cpu": ("gpt-test", 0, "fp32")}
"""Network whose step is counted, as many of its layers as fit a device (0: all), and its number format."""
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


@rfm.simple_test
class CountedFlops(EngineTest):
    """`engine bench flops`: the flops of a step as torch counts its products and by the formula, which have to be the
    same to the last one. layers: 0 takes all of the model's.
    """

    descr = "flops of a training step, counted and by the formula"
    study = "peak"
    tags = {"peak"}
    num_tasks = 1
    model = variable(str, value="", loggable=True)
    layers = variable(int, value=0)
    precision = variable(str, value="", loggable=True)
    time_limit = SHORT[SYSTEM.device.kind]

    @run_after("init")
    def take_a_network_of_this_device(self) -> None:
        model, layers, precision = OF_ONE_DEVICE[self.device]
        self.layers = self.layers if self.model else layers
        self.model, self.precision = self.model or model, self.precision or precision

    def options(self) -> list[str]:
        words = command("bench flops", model=self.model, layers=self.layers or None)
        return words + command("", precision=self.precision, device=self.device)

    @property
    def result(self) -> Result:
        return parse(self.record, "the result")

    def judge(self) -> None:
        check_formula(self.result.counted_flops)

    def figures(self) -> Figures:
        steps = self.result.counted_flops
        ratios = {one.recomputed: formula_over_counted(one.formula, one.counted) for one in steps}
        return {f"formula_over_counted_{name}": (ratio, "1") for name, ratio in ratios.items()}
