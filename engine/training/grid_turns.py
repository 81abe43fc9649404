"""Grids take turns in the same processes, each with a model of its own: how long a step takes on each.

Several of a grid share one model, if they differ by the schedule alone. Ranks begin each step together, so that what a
rank waits for is not the turn before.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from engine.comm.funnel import Comm
from engine.grid import Axis, Grid
from engine.overlap.tasks import StepSchedule
from engine.result.grid_turns import GridTurns
from engine.training.grids import CheckedGrids, model_of, name, schedule_of
from engine.training.iterations import Measurements
from engine.training.rounds import Side, take_rounds
from engine.training.trainer import Trainer
from engine.training_record import Training

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Side(Side):
    """It is a grid."""

    schedule: StepSchedule

    def begin(self) -> None:
        self.trainer.runner.schedule = self.schedule

    def prepare(self) -> None:
        self.trainer.comm.barrier()


def compare_grids(
    run: CheckedGrids,
    first: Trainer,
    connect: Callable[[Grid], Comm],
    make: Callable[[Training, Comm], Trainer],
    measurements: Measurements,
    *,
    began: float,
) -> tuple[GridTurns, ...]:
    """Measure every grid. Collective. first: the trainer of the first run. connect: connects the ranks as another grid.
    make: makes a trainer. measurements, began: as take_rounds() takes them. Raises Diverged.
    """
    comms = {run.grid: first.comm}
    trainers: dict[Any, Trainer] = {model_of(run): first}
    sides = []
    for one in run.runs:
        if one.grid not in comms:
            comms[one.grid] = connect(one.grid)
        if (model := model_of(one)) not in trainers:
            trainers[model] = make(one.training, comms[one.grid])
        trainer = trainers[model]
        recording = trainer.recorder.new_recording()
        sides.append(_Side(name(one), trainer, recording, schedule=one.training.staged(one.grid).schedule))
    take_rounds(sides, run.turns, measurements, began=began)
    found = []
    for side, one, predicted_s in zip(sides, run.runs, run.predicted_s, strict=True):
        schedule = schedule_of(one)
        found.append(
            GridTurns(
                grid=str(one.grid),
                micro_batch=one.training.batch.at_once(one.grid),
                schedule=None if schedule is None else str(schedule),
                rounds_s=tuple(side.rounds_s),
                time_per_iteration_s=side.time_s,
                over_first=None if side is sides[0] else side.over(sides[0]),
                exposed_s=_exposed_s(side),
                predicted_s=predicted_s,
            )
        )
        log.info("%-40s %8.3f s a step  %s", side.name, side.time_s, found[-1].over_first or "")
    return tuple(found)


def _exposed_s(side: Side) -> dict[str, float]:
    """Give what a rank waits for in a step, by axis, the mean of all. Collective."""
    axes, steps = side.recording.axes, side.recording.steps
    own = torch.tensor([axes[axis].exposed_s if axis in axes else 0.0 for axis in Axis], dtype=torch.float64)
    means = side.trainer.comm.everyone(own / steps).mean(0).tolist()
    return {axis.value: seconds for axis, seconds in zip(Axis, means, strict=True) if seconds}
