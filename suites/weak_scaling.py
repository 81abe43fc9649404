"""Weak scaling trains published series (axonn-sc24 Table III, par4d Tables II and III), or tiny models on one machine.

    reframe -c suites/weak_scaling.py --system frontier              all points of the system
    reframe -c suites/weak_scaling.py --system frontier -t nightly   what runs every night, on four nodes
    reframe -c suites/weak_scaling.py --system frontier -S grid=8x1x8x8 -S data=/path/to/corpus -n 512
    reframe -c suites/weak_scaling.py --system frontier -S overlap=none    without hiding communication
    reframe -c suites/weak_scaling.py --system frontier -S tune_matmul=no -S also_overlap=off -S weight_decay=0.01
    reframe -c suites/weak_scaling.py --system frontier -S model=llama-3.1-8b -n 512    another network there
    reframe -c suites/weak_scaling.py --system frontier -S model=vit-32x4096 -n 512     which may see images
    reframe -c suites/weak_scaling.py --system frontier -n OfImages  the U-Nets

Each result says how much of an iteration is compute and how much exposed communication (axonn-sc24 Fig. 7), and of a
series with a number of tokens how many days these take (axonn-ipdps22 Fig. 9). Efficiency relates points to each other:
the report has it. Where a paper hides less communication than the engine can, the job trains once more behind, with all
of it hidden, and its figures tell the gain.
"""

import json
import shlex
from pathlib import Path

import reframe as rfm
from reframe.core.builtins import fixture, run_after, run_before, variable
from reframe.core.exceptions import PerformanceError, SanityError

from engine.models.catalogue import lookup
from engine.result import metrics
from suites.base.budget import ToSolution
from suites.base.engine_test import RESULT
from suites.base.figures import Figures, target, unreached
from suites.base.prepared import Corpus
from suites.base.running import Worth
from suites.base.series import Point
from suites.base.training import SYNTHETIC, SYSTEM, points_of

SECOND = "second"
"""Folder of the second training's result."""
OFF = "off"
ON_TEXT = SYSTEM.device.kind == "cpu"  # elsewhere data is made up unless a corpus is given


def of_images(point: Point) -> bool:
    return lookup(point.model).task.data.kind == "images"


class OnePoint(ToSolution):
    """One point of a series. The work per device is constant, so the ideal time per iteration is, too."""

    descr = "weak scaling of training"
    study = "weak_scaling"
    worth = Worth.TRAINING
    also_overlap = variable(str, type(None), value=None)
    """overlap with which the job trains once more: that of the series unless set, and `off` for no second training"""

    second_record = variable(dict, value={}, loggable=True)
    """whole result of the second training, beside `record`"""

    @run_after("init")
    def take_second_training(self) -> None:
        self.also_overlap = self.point.series.also_overlap if self.also_overlap is None else self.also_overlap
        if self.also_overlap in ("", OFF):
            self.also_overlap = None
        else:
            self.keep_files = [*self.keep_files, SECOND]

    @run_before("run")
    def train_once_more(self) -> None:
        """Train behind the first training, whatever became of it, with the other overlap."""
        if self.also_overlap is None:
            return
        first, self.overlap = self.overlap, self.also_overlap
        words = self.engine_words(self.labels() | {"variant": f"overlap {self.also_overlap}"})
        self.overlap = first
        launch = self.job.launcher.run_command(self.job)
        line = [launch, self.executable, "-m", "engine", *map(shlex.quote, [*words, "--out", f"{SECOND}/{RESULT}"])]
        self.postrun_cmds += [" ".join(line)]

    def judge(self) -> None:
        super().judge()
        if self.also_overlap is None:
            return
        file = Path(self.stagedir, SECOND, RESULT)
        self.second_record = json.loads(file.read_text()) if file.exists() else {}
        if self.second_record.get("status") != "ok":
            reason = self.second_record.get("reason") or f"it wrote no {RESULT}"
            raise SanityError(f"the training with --overlap {self.also_overlap} failed: {reason}")

    def figures(self) -> Figures:
        """Add the second training's time, and how many times as fast it is as the first."""
        found = super().figures()
        if not self.second_record:
            return found
        own = "_".join(word.partition("=")[0] for word in str(self.also_overlap).split(","))
        time_s = self.second_record["summary"]["time_per_iteration_s"]
        gain = metrics.speed_up(self.record["summary"]["time_per_iteration_s"], time_s)
        return found | {f"time_per_iteration_{own}": (time_s, "s"), f"speed_up_{own}": (gain, "x")}

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
