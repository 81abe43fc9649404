"""Efficiency of a scaling study: a point's flop/s per device against those of the smallest point of its line.

It is measured where that one ran earlier in the same session; the report computes it over all sessions. With a fixed
model it is the parallel efficiency of strong scaling as well: flops are then as many as tokens, times a constant.
"""

from typing import ClassVar

from reframe.core.builtins import performance_function, run_before

from suites.point_training import SYSTEM, PointTraining
from suites.series import Point, points


class Scaling(PointTraining):
    """One point of a scaling series."""

    smallest_rates: ClassVar[dict[tuple[str, ...], float]] = {}
    """Model flop/s per device of each (study, partition, line), from this session's smallest point."""

    def line(self, point: Point) -> str:
        """What the points that are compared with each other have in common."""
        raise NotImplementedError

    @run_before("performance")
    def meet_the_smallest(self) -> None:
        """Know the smallest point's rate, or leave the efficiency out."""
        if self.is_dry_run():
            return
        line = [point.devices for point in points(self.study, SYSTEM.name) if self.line(point) == self.line(self.point)]
        if self.num_tasks == min(line):
            self.smallest_rates[self._key()] = self._rate_per_device()
        if self._key() not in self.smallest_rates:
            del self.perf_variables["efficiency"]

    @performance_function("%")
    def efficiency(self) -> float:
        return 100 * (self._rate_per_device() / self.smallest_rates[self._key()])

    def _key(self) -> tuple[str, ...]:
        return self.study, self.current_partition.fullname, self.line(self.point)

    def _rate_per_device(self) -> float:
        return float(self.record["summary"]["model_flops_per_s"]) / self.num_tasks
