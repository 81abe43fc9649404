"""Strong scaling: one model on more and more devices, and how long a whole training would take on each number.

    reframe -c suites/strong_scaling.py --system frontier                   all points of the system
    reframe -c suites/strong_scaling.py --system frontier -n gpt-80b        those of one model (axonn-sc24 VII-C)
    reframe -c suites/strong_scaling.py --system frontier -n 256 -S iterations=3 -S time_limit=1h
    reframe -c suites/strong_scaling.py --system local

Time to solution is for the series' number of tokens, extrapolated from the mean time of an iteration (axonn-sc24 VII-C,
axonn-ipdps22 VI-D); a series that names no number has none. Efficiency relates points to each other: the report has it.
"""

import reframe as rfm
from reframe.core.builtins import parameter, performance_function, run_before

from engine.result import metrics
from suites.base.point_training import SYSTEM, PointTraining
from suites.base.series import points

DAY_S = 86400


@rfm.simple_test
class StrongScaling(PointTraining):
    """One point of a series. The same training on more devices, so the ideal is a time that falls as they grow."""

    descr = "strong scaling of training"
    study = "strong_scaling"
    point = parameter(points("strong_scaling", SYSTEM.name), fmt=lambda point: str(point), loggable=True)

    @run_before("performance")
    def leave_out_a_solution_never_asked_for(self) -> None:
        if not self.is_dry_run() and self.point.series.token_budget is None:
            del self.perf_variables["time_to_solution"]

    @performance_function("days")
    def time_to_solution(self) -> float:
        assert self.point.series.token_budget is not None
        rate = float(self.record["summary"]["tokens_per_s"])
        return metrics.time_to_solution(self.point.series.token_budget, rate) / DAY_S

    def labels(self) -> dict[str, str]:
        budget = self.point.series.token_budget
        return super().labels() | ({} if budget is None else {"token_budget": f"{budget:g}"})
