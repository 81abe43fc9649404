"""A test may be one point of a series, as series.yaml says, and its training."""

import os
from collections.abc import Callable
from typing import Any

import reframe as rfm
from reframe.core.builtins import parameter, run_after, run_before, variable
from reframe.core.runtime import runtime
from reframe.utility import typecheck as typ

import systems
from suites.base.series import AUTO, Point, points, too_long
from suites.base.training import Refused, Training

SYSTEM = systems.load(runtime().system.name)
ON_THIS_MACHINE = any(partition.is_local for partition in SYSTEM.partitions)
FEWEST_CORES = 2


def too_many_ranks(ranks: int) -> str | None:
    """Say why so many measure little here, or None: on a machine that isn't a cluster a rank takes a core."""
    cores = os.cpu_count() or 1
    if SYSTEM.device.kind == "cpu" and ON_THIS_MACHINE and ranks > max(cores, FEWEST_CORES):
        return f"{ranks} ranks on {cores} cores measure little: -S oversubscribe=yes runs them all the same"
    return None


def points_of(study: str, which: Callable[[Point], bool] = lambda _: True) -> Any:
    """Return the parameter of a test that runs each of the study's points on this system, or which of them."""
    return parameter(list(filter(which, points(study, SYSTEM.name))), fmt=lambda point: str(point), loggable=True)


class OfSeries(rfm.RegressionTestPlugin):
    """An EngineTest that runs its parameter `point`. What -S gives counts before what the series says."""

    study: str
    model: str
    time_limit: str | None
    point: Point
    series = variable(str, value="", loggable=True)
    limited_by_series = True

    @run_after("init")
    def take_point(self) -> None:
        point, series = self.point, self.point.series
        self.num_tasks = point.devices
        other = self.model not in ("", point.model)  # then these are no points of the series as it is published
        self.series = f"{series.name} with {self.model}" if other else series.name
        self.model = self.model or point.model
        self.limited_by_series = self.time_limit is None
        self.time_limit = self.time_limit or series.time_limit
        self.tags = {self.study, series.name, *series.tags}

    def labels(self) -> dict[str, str]:
        return super().labels() | {"series": self.series}


class PointTraining(OfSeries, Training):
    """The training of a point."""

    oversubscribe = variable(typ.Bool, value=False)
    iterations = 0  # as many as the series says

    @run_after("init")
    def take_training(self) -> None:
        point, series = self.point, self.point.series
        self.sequences, self.micro_batch, self.precision = point.sequences, point.micro_batch, series.precision
        self.checkpoint_every = series.checkpoint_every
        self.checkpoint_activations = self.checkpoint_activations and series.checkpoint_every != 0
        self.offload, self.reduce_dtype = series.offload, series.reduce_dtype
        self.grid = point.grid if self.grid == AUTO else self.grid
        self.schedule = point.schedule if self.schedule == AUTO else self.schedule
        self.iterations = self.iterations or series.iterations
        self.ranks_per_node = self.ranks_per_node or series.ranks_per_node

    @run_before("setup")
    def refuse_to_oversubscribe(self) -> None:
        if not self.oversubscribe and (reason := too_many_ranks(self.num_tasks)):
            self.skip(reason)

    @run_after("setup")
    def refuse_what_the_queue_would_end(self) -> None:
        """A time limit that -S gives is the user's own affair. Raises Refused."""
        refusal = too_long(self.point, self.system, self.partition)
        if refusal and self.limited_by_series:
            raise Refused(refusal)
