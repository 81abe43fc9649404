"""What each way to hide communication gains: none, one after the other added (par4d Fig. 3), and each alone.

    reframe -c suites/overlap_ablation.py --system perlmutter                         every variant, three jobs of each
    reframe -c suites/overlap_ablation.py --system frontier -n 'repeat=1.*gpt-20b'    one job of each, of one model
    reframe -c suites/overlap_ablation.py --system vcluster -n 'variant=(none|oar|ors)$' -r
    reframe -c suites/overlap_ablation.py --system alps -t nightly -S grid=4x1x4x1 -S iterations=20

`cache` keeps as many blocks as the series says. Gradients are not clipped, which would keep the optimizer from stepping
a bucket while the next is summed. Jobs run round by round, each variant once, so that a machine that gets
slower with time is not taken for a variant that is slow. A variant whose flag finds nothing to hide on the grid, such
as data where that axis has one rank, is skipped and says so.
"""

from typing import ClassVar

import reframe as rfm
from reframe.core.builtins import parameter, performance_function, run_after, run_before

from engine.grid import Grid
from suites.engine_test import RESULT
from suites.point_training import SYSTEM, PointTraining
from suites.series import points
from suites.training import Refused

POINTS = points("overlap_ablation", SYSTEM.name)
ROUNDS = max(point.series.repeats for point in POINTS)
TIMELINE = "timeline.json"
FLAGS = ("oar", "ors", "oag", "cache", "data")
NONE = "none"
ADDED = [",".join(FLAGS[: number + 1]) for number in range(len(FLAGS))]
VARIANTS = [NONE, *ADDED, *FLAGS[1:]]


def useful(flag: str, grid: Grid) -> bool:
    """Whether the grid has the communication that the flag hides."""
    axes = {"oar": grid.x * grid.y, "data": grid.data}
    return axes.get(flag, grid.z) > 1


def last(variant: str) -> str:
    """The flag that the variant is there to measure."""
    return variant.rpartition(",")[2]


@rfm.simple_test
class OverlapAblation(PointTraining):
    """One job of one variant of one point. Its gain is against the job without overlap of the same round."""

    descr = "gain of each overlap of communication with compute"
    study = "overlap_ablation"
    repeat = parameter(range(1, ROUNDS + 1), type=int, loggable=True)
    point = parameter(POINTS, fmt=lambda point: str(point), loggable=True)
    variant = parameter(VARIANTS, type=str, loggable=True)
    keep_files = [RESULT, TIMELINE]
    times_without_overlap: ClassVar[dict[tuple[str, str, int], float]] = {}
    """Seconds an iteration without overlap of each (partition, point, round) of this session."""

    @run_after("init")
    def take_variant(self) -> None:
        self.chosen, self.overlap = self.overlap, self.variant.replace("cache", f"cache={self.point.series.cache}")

    @run_after("setup")
    def leave_out_what_does_nothing(self) -> None:
        """Raises Refused where one overlap is asked for, which would make all variants the same."""
        if self.chosen:
            raise Refused(f"This study sets overlap itself: choose by -n variant=..., not by -S overlap={self.chosen}.")
        flag, rounds = last(self.variant), self.point.series.repeats
        self.skip_if(self.repeat > rounds, f"the series {self.series} has {rounds} rounds")
        self.skip_if(
            flag != NONE and not useful(flag, Grid.parse(self.grid)),
            f"{flag} hides nothing on grid {self.grid}, which has no such communication",
        )

    def options(self) -> list[str]:
        """With a timeline for two pictures: of the first job without overlap, and of the first with all there is."""
        fullest = [NONE, *(variant for variant in ADDED if useful(last(variant), Grid.parse(self.grid)))][-1]
        drawn = self.repeat == 1 and self.variant in (NONE, fullest)
        return [*super().options(), "--clip", "0", *(["--timeline", TIMELINE] if drawn else [])]

    @run_before("performance")
    def know_the_time_without_overlap(self) -> None:
        """Know the time without overlap, or leave the gain out."""
        if self.is_dry_run():
            return
        if self.variant == NONE:
            self.times_without_overlap[self._key()] = self._time()
        if self.variant == NONE or self._key() not in self.times_without_overlap:
            del self.perf_variables["speedup_over_none"]

    @performance_function("x")
    def speedup_over_none(self) -> float:
        return self.times_without_overlap[self._key()] / self._time()

    def _key(self) -> tuple[str, str, int]:
        return self.current_partition.fullname, str(self.point), self.repeat

    def _time(self) -> float:
        return float(self.record["summary"]["time_per_iteration_s"])
