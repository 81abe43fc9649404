"""Strong scaling trains one model on more and more devices: how long would a whole training take on each number?

    reframe -c suites/strong_scaling.py --system frontier                   all points of the system
    reframe -c suites/strong_scaling.py --system frontier -n gpt-80b        those of one model (axonn-sc24 VII-C)
    reframe -c suites/strong_scaling.py --system frontier -n 256 -S iterations=3 -S time_limit=1h
    reframe -c suites/strong_scaling.py --system local

Time to solution is for the series' number of tokens, extrapolated from the mean time of an iteration (axonn-sc24 VII-C,
axonn-ipdps22 VI-D); a series that names no number has none. Efficiency relates points to each other: the report has it.
"""

import reframe as rfm

from suites.base.budget import ToSolution
from suites.base.training import points_of


@rfm.simple_test
class StrongScaling(ToSolution):
    """One point of a series. It is the same training on more devices, so the ideal time falls as they grow."""

    descr = "strong scaling of training"
    study = "strong_scaling"
    point = points_of("strong_scaling")
