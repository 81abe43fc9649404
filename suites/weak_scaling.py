"""Weak scaling trains published series (axonn-sc24 Table III, par4d Tables II and III), or tiny models on one machine.

    reframe -c suites/weak_scaling.py --system frontier              all points of the system
    reframe -c suites/weak_scaling.py --system frontier -t nightly   what runs every night, on four nodes
    reframe -c suites/weak_scaling.py --system frontier -S grid=8x1x8x8 -S data=/path/to/corpus -n 512
    reframe -c suites/weak_scaling.py --system frontier -S overlap=none    without hiding communication
    reframe -c suites/weak_scaling.py --system frontier -S model=llama-3.1-8b -n 512    another network there
    reframe -c suites/weak_scaling.py --system frontier -S model=vit-32x4096 -n 512     which may see images
    reframe -c suites/weak_scaling.py --system frontier -n OfImages  the U-Nets

Each result says how much of an iteration is compute and how much exposed communication (axonn-sc24 Fig. 7). Efficiency
relates points to each other: the report has it.
"""

import reframe as rfm
from reframe.core.builtins import fixture, run_after
from reframe.core.exceptions import PerformanceError

from engine.models.catalogue import lookup
from suites.base.figures import target, unreached
from suites.base.prepared import Corpus
from suites.base.running import Worth
from suites.base.series import Point
from suites.base.training import SYNTHETIC, SYSTEM, PointTraining, points_of

ON_TEXT = SYSTEM.device.kind == "cpu"  # elsewhere data is made up unless a corpus is given


def of_images(point: Point) -> bool:
    return lookup(point.model).task.data.kind == "images"


class OnePoint(PointTraining):
    """One point of a series. The work per device is constant, so the ideal time per iteration is, too."""

    descr = "weak scaling of training"
    study = "weak_scaling"
    worth = Worth.TRAINING

    @run_after("performance")
    def reach_what_is_published(self) -> None:
        """Apply where it isn't known what these jobs usually measure here. Raises PerformanceError."""
        if self.is_dry_run() or self.referenced or not self.compare:
            return
        published = target(self.system.name, self.series, self.num_tasks)
        if published is not None and (reason := unreached(self.record, published)):
            raise PerformanceError(reason)


@rfm.simple_test
class WeakScaling(OnePoint):
    """A point of a series of networks that read text."""

    point = points_of("weak_scaling", lambda point: not of_images(point))
    if ON_TEXT:
        text = fixture(Corpus, scope="session")

    def corpus(self) -> str:
        reads_text = lookup(self.model).task.data.kind == "text"
        return self.text.folder if ON_TEXT and reads_text and self.data == SYNTHETIC else self.data


@rfm.simple_test
class WeakScalingOfImages(OnePoint):
    """A point of a series of networks that see images, which are made up unless -S data names some."""

    point = points_of("weak_scaling", of_images)
