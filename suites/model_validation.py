"""Does the performance model find the fastest grids? Every valid grid of a few jobs, measured (axonn-sc24 Fig. 2).

    reframe -c suites/model_validation.py --system vcluster -r
    reframe -c suites/model_validation.py --system perlmutter         a dry run elsewhere: GPT-20B on 32, GPT-40B on 64
    reframe -c suites/model_validation.py --system vcluster -n wide.*8x1x1x1 -r
    reframe -c suites/model_validation.py --system vcluster -n ModelValidation.*images -r    the U-Net's
    reframe -c suites/model_validation.py --system vcluster -n GridsInTurns -r    the fastest ones, in turns in one job

The report sets the times beside the order that the model gives; `par4d plan --validate` prints it.
"""

import re

import reframe as rfm
from reframe.core.builtins import run_after

from suites.base.figures import Figures
from suites.base.in_rounds import InTurns, times_of
from suites.base.training import SYSTEM, PointTraining, points_of


@rfm.simple_test
class ModelValidation(PointTraining):
    """A training of one job on one grid. Activations are computed again where the published runs do so."""

    descr = "time per batch of one grid"
    study = "model_validation"
    point = points_of("model_validation")
    checkpoint_activations = SYSTEM.device.kind == "cuda"
    energy = "off"


@rfm.simple_test
class GridsInTurns(InTurns):
    """The grids of one job take turns, so that their order is not that in which a machine's speed drifts."""

    descr = "grids in turns"
    study = "grids"
    point = points_of("grids")
    checkpoint_activations = SYSTEM.device.kind == "cuda"

    @property
    def grid_options(self) -> list[str]:
        named = [word for candidate in self.point.series.candidates for word in ("--candidate", candidate)]
        return named or ["--system", SYSTEM.name]

    @run_after("setup")
    def settle_grid(self) -> None:
        """Leave it to the job, which checks all grids before it starts the first."""

    def options(self) -> list[str]:
        return ["bench", "grids", *self.plan_options(self.corpus()), *self.round_options()]

    def judge(self) -> None:
        self.judge_rounds(self.record["config"]["grids"])

    def figures(self) -> Figures:
        found: Figures = {}
        for side in self.sides():
            found |= times_of(side, re.sub(r"\W+", "_", side["name"]))
        return found
