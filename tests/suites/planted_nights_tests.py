"""planted_nights.py runs this test every night: what two nodes send each other over a slow link, which no other work on
the machine moves.
"""

import reframe as rfm
from reframe.core.builtins import parameter

from suites import bandwidth
from suites.base.figures import Figures


@rfm.simple_test
class Bandwidth(bandwidth.Bandwidth):
    """Two nodes make a ring, with a rank each. Each planted fault has jobs of its own, to compare with each other."""

    descr = "a link on which something is planted"
    study = "planted_nights"
    planted = parameter(["step", "creep", "node", "software"])
    ranks_per_node, keep = 1, False
    message_bytes, time_budget_s = 2_000_000, 1.0

    def fit_partition(self) -> None:
        self.num_tasks = 2

    def figures(self) -> Figures:
        """Return the bandwidth of the collective that sends both ways all the time."""
        (ring,) = self.links.alone
        return {"all_reduce": (next(one.bytes_per_s for one in ring.times if one.kind == "all_reduce"), "B/s")}
