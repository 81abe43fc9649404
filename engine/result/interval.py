"""Between which values the middle of what was repeated lies, with confidence 0.95. No torch.

What is repeated decides what an interval speaks of: jobs, of other jobs on that machine; rounds of one job, of that job
alone.
"""

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import NamedTuple

CONFIDENCE = 0.95
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Quantiles 0.975 of Student's t by degrees of freedom, from 1 on; that of 30 holds, a little wide, for more. They are
scipy's, which a machine that ci/gpu visits needn't have."""


class Interval(NamedTuple):
    """From low to high."""

    low: float
    high: float


NOTHING_KNOWN = Interval(0.0, math.inf)
"""Of a ratio that was measured too few times."""


def over_jobs(ratios: Sequence[float]) -> Interval:
    """Of ratios, one a job, by Student's t of their logarithms; of fewer than two jobs nothing is known.

    Raises ValueError for a ratio that isn't positive.
    """
    if len(ratios) < 2:
        return NOTHING_KNOWN
    logs = [math.log(ratio) for ratio in ratios]
    reach = _STUDENT[min(len(logs) - 1, len(_STUDENT)) - 1] * stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean(logs) - reach), math.exp(mean(logs) + reach))


def over_rounds(ratios: Sequence[float]) -> Interval:
    """Of the median of ratios, one a round, by their order: as many are left out at both ends as chance allows.

    It asks nothing of how they are distributed. Of fewer than six rounds nothing is known: the whole range of five
    holds the median with confidence 1 - 2 * 0.5**5 = 0.94.
    """
    ordered, left_out, tail = sorted(ratios), 0, 0.5 ** len(ratios)
    if 2 * tail > 1 - CONFIDENCE:
        return NOTHING_KNOWN
    while True:
        tail += math.comb(len(ordered), left_out + 1) * 0.5 ** len(ordered)
        if 2 * tail > 1 - CONFIDENCE:
            return Interval(ordered[left_out], ordered[-1 - left_out])
        left_out += 1
