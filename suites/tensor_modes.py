"""Which split of a product is the fastest where: 1D, 2D, 2.5D and 3D train the same vision transformer (colossal-ai).

    reframe -c suites/tensor_modes.py --system system-iv                   Table 3: P100s, one a node
    reframe -c suites/tensor_modes.py --system system-ii                   Fig. 11b: A100s, linked in pairs
    reframe -c suites/tensor_modes.py --system local -r                    small networks, on one machine
    ci/cluster up --nodes 8 --ranks-per-node 1 --slow-pairs
    reframe -c suites/tensor_modes.py --system vcluster-pairs --repeat 3 -r    slow links between pairs of nodes

Each mode has a batch of its own, as in the paper: that of Table 3, else the largest that fits by the traced step
(suites/series.yaml). 2.5D stands there with every depth that its devices allow. Rates are compared, images a second.
"""

import reframe as rfm

from suites.base.figures import Figures
from suites.base.training import PointTraining, points_of


@rfm.simple_test
class TensorModes(PointTraining):
    """A training in one mode."""

    descr = "tensor modes"
    study = "tensor_modes"
    point = points_of("tensor_modes")
    energy = "off"

    def figures(self) -> Figures:
        return super().figures() | {"images_per_s": (self.record["summary"]["samples_per_s"], "image/s")}
