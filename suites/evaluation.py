"""Does every tensor mode become as accurate as data parallelism? Accuracy by epoch on images that aren't trained on
(colossal-ai, Fig. 7).

    reframe -c suites/evaluation.py --system local -r                 digits: ten jobs of a minute or two
    par4d data prepare-images --source imagenet/train --out train     a folder of pictures a class
    par4d data prepare-images --source imagenet/val --out val
    reframe -c suites/evaluation.py --system system-iii -S data=$PWD/train -S evaluation_data=$PWD/val

The paper's own series is ViT-S/16 for 250 epochs of ImageNet-1k, which are the user's own, so that nothing of it runs
without -S data and -S evaluation_data. Jobs of one seed begin with the same weights, and see the same images in the
same order; two seeds are two jobs of a verdict.
"""

from importlib.util import find_spec

import reframe as rfm
from reframe.core.builtins import fixture, parameter, variable

from suites.base.engine_test import command
from suites.base.figures import Figures
from suites.base.prepared import Digits, OfItsData
from suites.base.series import points
from suites.base.training import SYNTHETIC, SYSTEM, PointTraining, points_of

STUDY, OF_DIGITS = "evaluation", "vit-digits"


class Accuracy(OfItsData, PointTraining):
    """Training in one mode with an evaluation after each epoch. evaluation_data: an image set."""

    descr = "accuracy by epoch"
    study = STUDY
    reads = "images"
    energy = "off"
    start = parameter([0, 1], loggable=True)
    """seed of initial values and of the images' order"""
    evaluation_data = variable(str, value="")

    def evaluated(self) -> str:
        """Return the folder that is evaluated."""
        return self.evaluation_data

    def plan_options(self, data: str) -> list[str]:
        words = super().plan_options(data)
        if data == SYNTHETIC:  # of a dry run
            return [*words, *command("", seed=self.start)]
        every = self.iterations // self.point.series.evaluations
        evaluates = command("", evaluate_every=every, evaluation_data=self.evaluated())
        return [*words, *command("", seed=self.start), *evaluates]

    def figures(self) -> Figures:
        """Return the accuracy after the last epoch, and the best one."""
        shares = [one["right"] for one in self.record["evaluations"]]
        return super().figures() | {"accuracy": (shares[-1], "1"), "best_accuracy": (max(shares), "1")}


class OnDigits(Accuracy):
    """Handwritten digits, small enough for two cores."""

    point = points_of(STUDY)
    oversubscribe = True  # they may be late, but not wrong
    trained = fixture(Digits, scope="session")
    tested = fixture(Digits, scope="session", variables={"part": "test"})
    time_limit = "10m"

    def corpus(self) -> str:
        return str(self.trained.folder)

    def evaluated(self) -> str:
        return str(self.tested.folder)

    def cannot_run(self) -> str | None:
        """Ask for the package that has the digits."""
        if find_spec("sklearn") is None:
            return "it takes scikit-learn, which ships the digits: run ci/setup, or install it"
        reason: str | None = super().cannot_run()
        return reason


class OnImageNet(Accuracy):
    """The paper's own training, on the user's data."""

    point = points_of(STUDY)
    tags = {"long"}

    def cannot_run(self) -> str | None:
        """Ask for the data, of which there are none by default."""
        if SYNTHETIC in (self.data, self.evaluation_data or SYNTHETIC):
            return (
                "it takes the user's own images: give -S data=DIR and -S evaluation_data=DIR, which par4d data "
                "prepare-images makes"
            )
        reason: str | None = super().cannot_run()
        return reason


rfm.simple_test(OnDigits if {point.model for point in points(STUDY, SYSTEM.name)} == {OF_DIGITS} else OnImageNet)
