"""The engine takes turns with that of an earlier commit, so that the machine, which both share, cancels.

    ci/nightly --against COMMIT                                               all of it, with a verdict
    reframe -c suites/earlier.py --system local -S Earlier.checkout=DIR -r    DIR: a checkout of that commit

They train what weak scaling trains at night, each rank of one beside the same rank of the other, a step in turn, by
gloo or NCCL as `engine train` does. A run is one job, and each set of processes is fast or slow of its own: a verdict
takes several.
"""

from pathlib import Path

import reframe as rfm
from reframe.core.builtins import run_after, run_before, variable

from suites.base.comparison import PeerComparison
from suites.base.night import NIGHTLY, Worth
from suites.base.point_training import PointTraining, points_of

STUDY = "earlier"


@rfm.simple_test
class Earlier(PeerComparison, PointTraining):
    """One point. checkout: the folder of the earlier commit. rounds: as many as the series says, by default."""

    descr = "step time against an earlier commit of the engine"
    study = STUDY
    worth = Worth.TRAINING
    time_limit = "4m"
    point = points_of("weak_scaling", lambda point: NIGHTLY in point.series.tags)
    checkout = variable(str, value="")
    rounds = variable(int, value=0)
    steps_per_round = 1
    breakdown = False

    @run_after("init")
    def be_no_test_of_other_nights(self) -> None:
        self.tags = {STUDY, self.point.series.name}

    def own_options(self) -> list[str]:
        return []

    @run_before("setup")
    def ask_for_the_checkout(self) -> None:
        if not self.checkout:
            self.skip("no earlier commit is named: -S Earlier.checkout=DIR does, or ci/nightly --against COMMIT")

    def options(self) -> list[str]:
        words = ["bench", "peers", "--earlier", str(Path(self.checkout).resolve()), "--grid", self.grid]
        words += ["--model", self.model, "--batch-size", str(self.sequences), "--precision", self.precision]
        words += ["--device", self.device, *self.device_memory_options, *self.recompute_options]
        words += ["--micro-batch", str(self.micro_batch)] if self.micro_batch else []
        words += ["--overlap", self.overlap] if self.overlap else []
        words += ["--rounds", str(self.rounds or self.point.series.rounds), "--jobs", "1", "--road", "gloo"]
        return [*words, "--steps-per-round", str(self.steps_per_round)]
