"""What each flag of overlap gains alone, on every grid of a small machine: the way to see where one costs something.

reframe -c suites/overlap_grids.py --system vcluster -r
reframe -c suites/overlap_grids.py --system vcluster -n 8-gpt.*-1x1x8x1 -S rounds=20 -r    one grid, more rounds
reframe -c suites/overlap_grids.py --system local
"""

import reframe as rfm
from reframe.core.builtins import parameter

from engine.overlap.flags import Overlap
from engine.overlap.variants import alone
from suites.base.ablation import Ablation
from suites.base.point_training import SYSTEM
from suites.base.series import points


@rfm.simple_test
class OverlapGrids(Ablation):
    """One grid: each flag that has something to hide there, by itself."""

    descr = "gain of each overlap alone, on every grid"
    study = "overlap_grids"
    valid_systems = ["+gloo"]
    point = parameter(points("overlap_grids", SYSTEM.name), fmt=lambda point: str(point), loggable=True)

    def variants(self) -> list[str]:
        return [str(flag) for flag in alone(Overlap.parse(self.overlap))]
