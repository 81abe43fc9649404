"""Gain of each way to hide communication, with one after the other added (par4d Fig. 3), and alone.

    reframe -c suites/overlap_ablation.py --system perlmutter                  one job a point, all variants in turns
    reframe -c suites/overlap_ablation.py --system frontier -n gpt-20b         one model
    reframe -c suites/overlap_ablation.py --system alps -S grid=4x1x4x1 -S rounds=20
    reframe -c suites/overlap_ablation.py --system vcluster -n two-nodes -S overlap=oar,oag -r    some of the flags

`cache` keeps as many blocks as the series says. A flag that has nothing to hide on the grid, such as data where that
axis has one rank, is left out, and the job's standard error says so. The gains of one job are its own; --repeat 3 to 6
say what others would gain.
"""

import reframe as rfm

from suites.base.in_rounds import Ablation
from suites.base.running import Worth
from suites.base.training import points_of


@rfm.simple_test
class OverlapAblation(Ablation):
    """All variants of one point that its grid has a use for."""

    descr = "gain of each overlap of communication with compute"
    study = "overlap_ablation"
    worth = Worth.OVERLAPS
    point = points_of("overlap_ablation")
