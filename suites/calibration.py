"""The performance model's numbers are fitted to these trainings, which have one axis at a time.

par4d calibrate --system vcluster                                          these, links and devices, and the fit
reframe -c suites/calibration.py --system vcluster -r                      these alone
"""

import reframe as rfm

from suites.base.series import CALIBRATION
from suites.base.training import SYSTEM, PointTraining, points_of


@rfm.simple_test
class Calibration(PointTraining):
    """A training on one grid. Activations are computed again where the published runs do so."""

    descr = "time per batch of one axis"
    study = CALIBRATION
    point = points_of(CALIBRATION)
    checkpoint_activations = SYSTEM.device.kind == "cuda"
    energy = "off"

    def peak_options(self, precision: str) -> list[str]:
        """No peaks, as what products reach is measured by itself (suites/peak.py)."""
        return []
