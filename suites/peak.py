"""What a device really reaches: matrix products of growing size (axonn-sc24 VI-C), memory bandwidth, launch latency.

    reframe -c suites/peak.py --system perlmutter
    reframe -c suites/peak.py --system alps -n Peak -P dtype=tf32

On an accelerator one device alone. On processors, which ranks share, that of one rank while as many others do the same
as a point of the system's weak scaling has.
"""

import reframe as rfm
from reframe.core.builtins import parameter, performance_function, run_after, run_before, variable
from reframe.utility import typecheck as typ

from suites.base.engine_test import EngineTest
from suites.base.night import NIGHTLY, Worth
from suites.base.point_training import SYSTEM, too_many_ranks
from suites.base.series import CALIBRATION, points

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
    """One of `engine bench`'s measurements of a device, on so many ranks at once.

    time_budget_s: what would take longer is left out; unless set, what the device takes for the largest matrices. Of
    several numbers of ranks and formats the one that a training takes is measured every night.
    """

    study = "peak"
    tags = {"peak"}
    tags_of_the_usual = {NIGHTLY, CALIBRATION}
    ranks = parameter(RANKS, type=int, loggable=True)
    oversubscribe = variable(typ.Bool, value=False)
    time_budget_s = variable(float, type(None), value=None)
    time_limit = SHORT[SYSTEM.device.kind]

    @run_after("init")
    def take_ranks(self) -> None:
        self.num_tasks = self.ranks
        if self.is_usual():
            self.tags = self.tags | self.tags_of_the_usual

    def is_usual(self) -> bool:
        """Whether trainings are, whose figures the performance model takes, too."""
        return self.device == "cuda" or self.ranks == CALIBRATED.devices

    @run_before("setup")
    def leave_out_what_oversubscribes(self) -> None:
        if not self.oversubscribe and (reason := too_many_ranks(self.num_tasks)):
            self.skip(reason)

    def budget(self) -> list[str]:
        """The engine's words for it."""
        budget_s = TIME_BUDGET_S[self.device] if self.time_budget_s is None else self.time_budget_s
        return ["--time-budget", f"{budget_s:g}"]

    @run_before("performance")
    def measure_nothing_in_a_dry_run(self) -> None:
        if self.is_dry_run():
            self.perf_variables.clear()


@rfm.simple_test
class Peak(DeviceTest):
    """`engine bench gemm`. dtype: every one that the device has a peak of; TF32 only where -P asks for it. sizes: ""
    takes what the device needs to reach it.
    """

    descr = "GEMM peak of one device"
    worth = Worth.PRODUCTS
    time_limit = {"cuda": "3m", "cpu": "2m"}[SYSTEM.device.kind]
    dtype = parameter(DTYPES, type=str, loggable=True)
    sizes = variable(str, value="")

    def is_usual(self) -> bool:
        return super().is_usual() and self.dtype == CALIBRATED.series.precision

    def options(self) -> list[str]:
        words = ["bench", "gemm", "--dtype", self.dtype, "--sizes", self.sizes or SIZES[self.device]]
        words += ["--device", self.device]
        return [*words, *self.budget()]

    @performance_function("flop/s")
    def best_flops_per_s(self) -> float:
        return float(self.record["best_flops_per_s"])


@rfm.simple_test
class MemoryBandwidth(DeviceTest):
    """`engine bench memory`: of each kernel of STREAM the best repeat. array_bytes: 0 is the engine's default."""

    descr = "memory bandwidth of one device"
    worth = Worth.MEMORY
    array_bytes = variable(int, value=0)

    def options(self) -> list[str]:
        words = ["bench", "memory", "--device", self.device, *self.budget()]
        return [*words, "--array-size", str(self.array_bytes)] if self.array_bytes else words

    def best(self, name: str) -> float:
        """Bytes/s of a kernel."""
        (kernel,) = (kernel for kernel in self.record["stream"]["kernels"] if kernel["name"] == name)
        return float(kernel["best_bytes_per_s"])

    @performance_function("B/s")
    def copy(self) -> float:
        return self.best("copy")

    @performance_function("B/s")
    def scale(self) -> float:
        return self.best("scale")

    @performance_function("B/s")
    def add(self) -> float:
        return self.best("add")

    @performance_function("B/s")
    def triad(self) -> float:
        return self.best("triad")


@rfm.simple_test
class LaunchLatency(DeviceTest):
    """`engine bench latency`: seconds of a tiny operator, the median."""

    descr = "launch latency of one device"
    worth = Worth.LAUNCHES
    tags_of_the_usual = {NIGHTLY}

    def options(self) -> list[str]:
        return ["bench", "latency", "--device", self.device]

    def medians(self) -> dict[str, float]:
        """Of every way to launch that the device has."""
        return {launched["name"]: launched["median_s"] for launched in self.record["launches"]}

    @run_before("performance")
    def choose_figures(self) -> None:
        for name in set(self.perf_variables) - set(self.medians() if self.record else ()):
            del self.perf_variables[name]

    @performance_function("s")
    def dispatch(self) -> float:
        return self.medians()["dispatch"]

    @performance_function("s")
    def completion(self) -> float:
        return self.medians()["completion"]

    @performance_function("s")
    def graph(self) -> float:
        return self.medians()["graph"]
