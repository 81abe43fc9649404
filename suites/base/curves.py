"""Loss curves: trainings of which a study compares two, step by step or in their course."""

from typing import Any

import reframe as rfm
from reframe.core.builtins import run_after
from reframe.core.exceptions import SanityError

from engine.grid import Grid
from engine.result import metrics
from engine.result.judges.curves import apart, astray
from engine.training_record import PrecisionName
from suites.base.figures import Figures
from suites.base.training import TrainingTest


class OneCurve(TrainingTest):
    """Training. variant: which of the two curves it is."""

    study = "validation"
    variant = ""
    oversubscribe = True  # two cores may be late, but not wrong

    def labels(self) -> dict[str, str]:
        return super().labels() | {"variant": self.variant}


class BesideSerial(rfm.RegressionTestPlugin):
    """The same training on all ranks of the grid; its curve is compared with the serial one, step by step."""

    record: dict[str, Any]
    serial: Any
    grid: str
    precision: PrecisionName

    @run_after("init")
    def take_the_grids_ranks(self) -> None:
        self.num_tasks = Grid.parse(self.grid).size

    def judge(self) -> None:
        if reason := apart(losses_of(self.record), losses_of(self.serial.record), self.precision):
            raise SanityError(f"the loss curves of {self.grid} and of serial training {reason}")

    def figures(self) -> Figures:
        difference, _ = metrics.curve_difference(losses_of(self.record), losses_of(self.serial.record))
        own: Figures = super().figures()
        return own | {"max_relative_difference": (difference, "1")}


class BesideData(rfm.RegressionTestPlugin):
    """A long training; its curve takes the course of the same with data parallelism alone."""

    record: dict[str, Any]
    grid: str
    data_parallel: Any

    def judge(self) -> None:
        if reason := astray(losses_of(self.record), losses_of(self.data_parallel.record)):
            raise SanityError(f"the loss curves of {self.grid} and of data parallelism {reason}")

    def figures(self) -> Figures:
        means = (metrics.window_means(losses_of(record)) for record in (self.record, self.data_parallel.record))
        difference, _ = metrics.curve_difference(*means)
        own: Figures = super().figures()
        return own | {"max_relative_difference": (difference, "1")}


def losses_of(record: dict[str, Any]) -> list[float]:
    """Return the loss of each iteration of a result."""
    return [float(iteration["loss"]) for iteration in record["iterations"]]
