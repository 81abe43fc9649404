"""A test may be one point of a series, as series.yaml says, and its training."""

from collections.abc import Callable
from typing import Any

import reframe as rfm
from reframe.core.builtins import parameter, run_after, variable
from reframe.core.runtime import runtime

import systems
from engine.training_record import PrecisionName
from suites.base.series import AUTO, Point, points
from suites.base.training import Training

SYSTEM = systems.load(runtime().system.name)


def points_of(study: str, which: Callable[[Point], bool] = lambda _: True) -> Any:
    """Return the parameter of a test that runs each of the study's points on this system, or which of them."""
    return parameter(list(filter(which, points(study, SYSTEM.name))), fmt=lambda point: str(point), loggable=True)


class OfSeries(rfm.RegressionTestPlugin):
    """An EngineTest that runs its parameter `point`. What -S gives counts before what the series says."""

    study: str
    model: str
    time_limit: str | None
    point: Point
    precision: PrecisionName
    series = variable(str, value="", loggable=True)

    @run_after("init")
    def take_point(self) -> None:
        point, series = self.point, self.point.series
        self.num_tasks, self.precision = point.devices, series.precision
        other = self.model not in ("", point.model)  # then these are no points of the series as it is published
        self.series = f"{series.name} with {self.model}" if other else series.name
        self.model = self.model or point.model
        self.time_limit = self.time_limit or series.time_limit
        self.tags = {self.study, series.name, *series.tags}

    def labels(self) -> dict[str, str]:
        return super().labels() | {"series": self.series}


class PointTraining(OfSeries, Training):
    """The training of a point."""

    iterations = 0  # as many as the series says

    @run_after("init")
    def take_training(self) -> None:
        point, series = self.point, self.point.series
        self.sequences, self.micro_batch = point.sequences, point.micro_batch
        self.training = series.training
        self.checkpoint_activations = self.checkpoint_activations and series.training.recomputed_together != 0
        self.grid = point.grid if self.grid == AUTO else self.grid
        self.schedule = point.schedule if self.schedule == AUTO else self.schedule
        self.iterations = self.iterations or series.iterations
        self.ranks_per_node = self.ranks_per_node or series.ranks_per_node
