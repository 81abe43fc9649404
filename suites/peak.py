"""The peak that a device really reaches: the best of square matrix products of growing size (axonn-sc24 VI-C).

On an accelerator that of one device alone. On processors, which ranks share, that of one rank while as many others
multiply as a point of the system's weak scaling has.
"""

import reframe as rfm
from reframe.core.builtins import parameter, performance_function, run_after, run_before, variable
from reframe.utility import typecheck as typ

from suites.engine_test import EngineTest
from suites.point_training import SYSTEM, too_many_ranks
from suites.series import points

SIZES = {"cuda": "1024..65536", "cpu": "256..4096"}
TIME_BUDGET_S = {"cuda": 120, "cpu": 20}
SERIES = points("weak_scaling", SYSTEM.name)
RANKS = sorted({point.devices for point in SERIES}) if SYSTEM.device.kind == "cpu" else [1]


@rfm.simple_test
class Peak(EngineTest):
    """`engine bench gemm` on so many ranks at once.

    dtype: what the system's weak-scaling series computes in, unless another is set. time_budget_s: larger matrices than
    it has time for are left out; unless set, what the device takes for the largest.
    """

    descr = "GEMM peak of one device"
    study = "peak"
    tags = {"peak", "nightly"}
    ranks = parameter(RANKS, type=int, loggable=True)
    dtype = variable(str, value="", loggable=True)
    oversubscribe = variable(typ.Bool, value=False)
    time_budget_s = variable(float, type(None), value=None)
    time_limit = "10m"

    @run_after("init")
    def take_ranks(self) -> None:
        self.num_tasks = self.ranks

    @run_before("setup")
    def leave_out_what_oversubscribes(self) -> None:
        if not self.oversubscribe and (reason := too_many_ranks(self.num_tasks)):
            self.skip(reason)

    def options(self) -> list[str]:
        self.dtype = self.dtype or SERIES[0].series.precision
        words = ["bench", "gemm", "--dtype", self.dtype, "--sizes", SIZES[self.device], "--device", self.device]
        budget_s = TIME_BUDGET_S[self.device] if self.time_budget_s is None else self.time_budget_s
        return [*words, "--time-budget", f"{budget_s:g}"]

    @performance_function("flop/s")
    def best_flops_per_s(self) -> float:
        return float(self.record["best_flops_per_s"])
