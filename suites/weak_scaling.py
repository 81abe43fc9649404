"""Weak scaling: the published series of this system (axonn-sc24 Table III), or tiny models on one machine.

    reframe -c suites/weak_scaling.py --system frontier              all points of the system
    reframe -c suites/weak_scaling.py --system frontier -t nightly   what fits a small allocation
    reframe -c suites/weak_scaling.py --system frontier -S grid=8x1x8x8 -S data=/path/to/corpus -n 512

Efficiency compares a point's flop/s per device with those of the smallest point of its series; it is measured where
that one ran earlier in the same session, and the report computes it over all sessions.
"""

import os
from typing import ClassVar

import reframe as rfm
from reframe.core.builtins import fixture, parameter, performance_function, run_after, run_before, variable
from reframe.core.runtime import runtime
from reframe.utility import typecheck as typ

import systems
from suites.corpus import Corpus
from suites.peak import Peak
from suites.series import points
from suites.training import Training

SYSTEM = systems.load(runtime().system.name)
POINTS = points(SYSTEM.name)
ON_TEXT = SYSTEM.device.kind == "cpu"  # elsewhere data is made up unless a corpus is given
PEAKS = SYSTEM.device.empirical_peak_flops
FEWEST_CORES = 2


@rfm.simple_test
class WeakScaling(Training):
    """One point of a series. Constant work per device, so the ideal is a constant time per iteration."""

    descr = "weak scaling of GPT training"
    study = "weak_scaling"
    point = parameter(POINTS, fmt=lambda point: str(point), loggable=True)
    series = variable(str, value="", loggable=True)
    oversubscribe = variable(typ.Bool, value=False)
    reference = {"$ref": "references.yaml"}
    smallest_rates: ClassVar[dict[tuple[str, str], float]] = {}
    """Model flop/s per device of each (partition, series), from this session's smallest point."""
    if any(point.precision not in PEAKS for point in POINTS):
        peak = fixture(Peak, scope="partition")
    if ON_TEXT:
        text = fixture(Corpus, scope="session")

    @run_after("init")
    def take_point(self) -> None:
        point = self.point
        self.series, self.num_tasks, self.model = point.series, point.devices, point.model
        self.sequences, self.micro_batch, self.precision = point.sequences, point.micro_batch, point.precision
        self.tags = {"weak_scaling", point.series, *point.tags}

    @run_before("setup")
    def refuse_to_oversubscribe(self) -> None:
        cores = os.cpu_count() or 1
        self.skip_if(
            SYSTEM.device.kind == "cpu" and self.num_tasks > max(cores, FEWEST_CORES) and not self.oversubscribe,
            f"{self.num_tasks} ranks on {cores} cores measure little: -S oversubscribe=yes runs them all the same",
        )

    @run_after("setup")
    def know_the_peak(self) -> None:
        if self.precision in PEAKS:
            self.empirical_peak_flops = PEAKS[self.precision].value
        elif not self.is_dry_run():
            self.empirical_peak_flops = self.peak.record["best_flops_per_s"]

    @run_before("performance")
    def meet_the_smallest(self) -> None:
        """Know the smallest point's rate, or leave the efficiency out."""
        if self.is_dry_run():
            return
        key = (self.current_partition.fullname, self.series)
        if self.num_tasks == min(point.devices for point in POINTS if point.series == self.series):
            self.smallest_rates[key] = self._rate_per_device()
        if key not in self.smallest_rates:
            del self.perf_variables["efficiency"]

    @performance_function("%")
    def efficiency(self) -> float:
        smallest = self.smallest_rates[self.current_partition.fullname, self.series]
        return 100 * self._rate_per_device() / smallest

    def _rate_per_device(self) -> float:
        return float(self.record["summary"]["model_flops_per_s"]) / self.num_tasks

    def corpus(self) -> str:
        return self.text.folder if ON_TEXT and self.data == "synthetic" else self.data

    def labels(self) -> dict[str, str]:
        return super().labels() | {"series": self.series}
