"""Gain of each flag of overlap alone, on every grid of a small machine: shows where one costs something.

reframe -c suites/overlap_grids.py --system vcluster -r
reframe -c suites/overlap_grids.py --system vcluster -n 8-gpt.*-1x1x8x1 -S rounds=20 -r    one grid, more rounds
reframe -c suites/overlap_grids.py --system local
"""

import reframe as rfm

from engine.overlap.flags import Overlap, each_alone
from suites.base.in_rounds import Ablation
from suites.base.training import points_of


@rfm.simple_test
class OverlapGrids(Ablation):
    """Each flag that has something to hide on one grid is measured by itself."""

    descr = "gain of each overlap alone, on every grid"
    study = "overlap_grids"
    valid_systems = ["+gloo"]
    point = points_of("overlap_grids")

    def variants(self) -> list[str]:
        return [str(flag) for flag in each_alone(Overlap.parse(self.overlap))]
