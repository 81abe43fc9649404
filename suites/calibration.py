"""Trainings that the numbers of the performance model are fitted to, one axis at a time.

par4d calibrate --system vcluster                                          these, links and devices, and the fit
reframe -c suites/calibration.py --system vcluster -r                      these alone
"""

import reframe as rfm
from reframe.core.builtins import parameter

from suites.base.point_training import SYSTEM, PointTraining
from suites.base.series import CALIBRATION, points


@rfm.simple_test
class Calibration(PointTraining):
    """One grid. Activations are computed again where the published runs do so."""

    descr = "time per batch of one axis"
    study = CALIBRATION
    point = parameter(points(CALIBRATION, SYSTEM.name), fmt=lambda point: str(point), loggable=True)
    checkpoint_activations = SYSTEM.device.kind == "cuda"
    energy = "off"

    def peak_options(self, precision: str) -> list[str]:
        """None: what products reach is measured by itself (suites/peak.py)."""
        return []
