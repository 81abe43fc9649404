"""Trainings on the grid that the planner finds, where it has the machine's facts."""

from typing import Any

import reframe as rfm
from reframe.core.builtins import run_after, variable

from engine.training_record import TrainingOptions
from suites.base.engine_test import command
from suites.base.series import AUTO, Point
from suites.base.training import PlannedGrid, planned_grid
from systems import Partition


class OnPlannersGrid(rfm.RegressionTestPlugin):
    """PointTraining whose label says who chose its grid."""

    point: Point
    grid: str
    partition: Partition
    ranks_of_a_node: int | None
    model: str
    sequences: int
    precision: Any
    checkpoint_activations: bool
    asked: TrainingOptions

    fixed_by_series = "fixed by the series"
    """Label of a grid that the series has."""
    grid_is = variable(str, value="")
    """who chose the grid"""

    def plan_options(self, data: str) -> list[str]:
        """Take a machine without a scheduler as one node with all ranks, by which the engine chooses a grid."""
        here = self.partition.is_local and not self.ranks_of_a_node
        return super().plan_options(data) + command("", devices_per_node=self.num_tasks if here else None)

    @run_after("init")
    def say_whose_grid_it_is(self) -> None:
        fixed = self.fixed_by_series if self.grid == self.point.grid else "given by hand"
        self.grid_is = "chosen by the engine" if self.grid == AUTO else fixed

    def plan_grid(self, **own: object) -> PlannedGrid | None:
        """Take the planner's grid; None where it finds none, so that the engine chooses. own: further options."""
        words = command(
            "",
            system=self.system.name,
            model=self.model,
            gpus=self.num_tasks,
            batch_size=self.sequences,
            precision=self.precision,
            checkpoint_activations=self.checkpoint_activations,
            keep_activations=not self.checkpoint_activations,
            checkpoint_blocks=self.asked.checkpoint_blocks,
            tensor_mode=self.asked.tensor_mode,
            **own,
        )
        if found := planned_grid(tuple(words)):
            self.grid, self.grid_is = found.grid, "found by par4d plan"
        return found

    def labels(self) -> dict[str, str]:
        return super().labels() | {"grid_is": self.grid_is}
