"""The peak that one device really reaches: the best of square matrix products of growing size (axonn-sc24 VI-C)."""

import reframe as rfm
from reframe.core.builtins import performance_function, variable

from suites.engine_test import EngineTest
from suites.series import points

SIZES = {"cuda": "1024..65536", "cpu": "256..4096"}
TIME_BUDGET_S = {"cuda": 120, "cpu": 20}


@rfm.simple_test
class Peak(EngineTest):
    """`engine bench gemm` on one device. Also a fixture of the scaling tests where no file tells the peak.

    dtype: what the system's weak-scaling series computes in, unless another is set. time_budget_s: larger matrices than
    it has time for are left out; unless set, what the device takes for the largest.
    """

    descr = "GEMM peak of one device"
    study = "peak"
    tags = {"peak", "nightly"}
    dtype = variable(str, value="", loggable=True)
    time_budget_s = variable(float, type(None), value=None)
    num_tasks = 1
    time_limit = "10m"

    def options(self) -> list[str]:
        self.dtype = self.dtype or points("weak_scaling", self.system.name)[0].series.precision
        words = ["bench", "gemm", "--dtype", self.dtype, "--sizes", SIZES[self.device], "--device", self.device]
        budget_s = TIME_BUDGET_S[self.device] if self.time_budget_s is None else self.time_budget_s
        return [*words, "--time-budget", f"{budget_s:g}"]

    @performance_function("flop/s")
    def best_flops_per_s(self) -> float:
        return float(self.record["best_flops_per_s"])
