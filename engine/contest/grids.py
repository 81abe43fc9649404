"""Contest of grids: how long a step takes on each. No torch before it is carried out.

Each has a model of its own, but several of a grid share one if they differ by the schedule alone. Ranks begin each step
together, so that what a rank waits for is not the turn before.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast, get_args

from engine.contest.rounds import CheckedContest, Rounds, Side, take_rounds
from engine.errors import UsageError
from engine.footprint.memory import Footprint
from engine.grid import Axis, Grid
from engine.models.mode_choice import ModeName
from engine.overlap.flags import Overlap
from engine.overlap.tasks import StepSchedule
from engine.pipeline.registry import DEFAULT, ScheduleChoice
from engine.training.checks import CheckedRun, ContestSetup, RunKind, checked
from engine.training.config import RunConfig, TrainConfig
from engine.training_record import Training, TrainingOptions

if TYPE_CHECKING:
    from engine.result.schema.contest import Contest

log = logging.getLogger(__name__)

CHOICE = "GRID[,MICRO][,SCHEDULE][,MODE]"


@dataclass(frozen=True, slots=True)
class GridChoice:
    """Grid with what a rank takes at once, its share if None, the schedule of its stages, if it has any, and the tensor
    mode, the run's if None.
    """

    grid: Grid
    micro: int | None = None
    schedule: ScheduleChoice | None = None
    mode: ModeName | None = None

    @classmethod
    def parse(cls, text: str) -> "GridChoice":
        """Read a word such as 1x1x2x4, 1x1x1x2p4,8,zero-bubble or 1x4x1x1,4,split. Raises UsageError."""
        first, _, last = text.rpartition(",")
        mode = last if last in get_args(ModeName) else None
        grid, micro, schedule = (*(text if mode is None else first).split(",", 2), "", "")[:3]
        try:
            return cls(
                Grid.parse(grid),
                int(micro) if micro else None,
                ScheduleChoice.parse(schedule) if schedule else None,
                cast("ModeName | None", mode),
            )
        except ValueError:
            raise UsageError(f"A grid to compare is written {CHOICE}, but {text!r} was given.") from None

    def apply(self, config: TrainConfig) -> TrainConfig:
        """Return the options with this choice, in place of theirs as far as it says something."""
        batch, pipeline = config.batch, config.pipeline if self.grid.stages > 1 else DEFAULT
        return replace(
            config,
            grid=self.grid,
            pipe=None,
            batch=replace(batch, micro=batch.micro if self.micro is None else self.micro),
            pipeline=pipeline if self.schedule is None else self.schedule.options(pipeline.stages),
            tensor_mode=self.mode or config.tensor_mode,
        )


@dataclass(frozen=True, slots=True)
class CheckedGrids(CheckedContest):
    """Contest of these runs, which differ by grid, micro-batch, schedule and tensor mode."""

    kind: ClassVar[RunKind] = "grids"
    runs: tuple[CheckedRun, ...] = ()
    predicted_s: tuple[float | None, ...] = ()
    """Predicted seconds of a step of each, or None."""

    @property
    def grids(self) -> tuple[Grid, ...]:
        """Grids that the run takes, its own first."""
        return tuple(run.grid for run in self.runs)

    @property
    def trainings(self) -> tuple[tuple[Training, Grid], ...]:
        """List the trainings of all grids."""
        return tuple((run.training, run.grid) for run in self.runs)

    def as_options(self) -> dict[str, Any]:
        """Return every option as it came out (CheckedRun.as_options)."""
        return CheckedContest.as_options(self) | {"grids": [name(run) for run in self.runs]}

    def compare(self, setup: ContestSetup) -> "Contest":
        """Measure every grid. Collective. Raises Diverged."""
        return compare_grids(self, setup)


def name(run: CheckedRun) -> str:
    """Name a run's choice as GridChoice.parse() reads it."""
    words = [str(run.grid), str(run.training.batch.at_once(run.grid))]
    words += [str(schedule)] if (schedule := schedule_of(run)) else []
    mode = run.training.mode(run.grid)
    usual = replace(run.training, tensor_mode=TrainingOptions().tensor_mode).mode(run.grid)
    return ",".join([*words, *([mode.name] if mode.name != usual.name else [])])


def schedule_of(run: CheckedRun) -> ScheduleChoice | None:
    """Return the schedule of a grid with stages."""
    return run.training.staged(run.grid).choice if run.grid.stages > 1 else None


def check_grids(
    config: RunConfig, overlap: Overlap, ranks: int, rounds: Rounds, choices: Mapping[GridChoice, float | None]
) -> tuple[CheckedGrids, list[str]]:
    """Check the contest of these choices, the first with all others. Raises UsageError.

    choices: each with the predicted seconds of a step, or None.
    """
    whole = TrainConfig.of(config, breakdown=True, overlap=overlap)
    found: dict[str, tuple[CheckedRun, float | None]] = {}
    for choice, predicted_s in choices.items():
        run = checked(choice.apply(whole), ranks)
        found.setdefault(name(run), (run, predicted_s))
    if len(found) < 2:
        raise UsageError(
            f"bench grids compares two or more, but was given {', '.join(found) or 'none'}: add --candidate {CHOICE}."
        )
    runs, predicted = zip(*found.values(), strict=True)
    _check_room(runs)
    return CheckedGrids.of(runs[0], rounds, len(runs), runs=runs, predicted_s=predicted), []


def model_of(run: CheckedRun) -> tuple[Any, ...]:
    """Return what runs must have in common to take turns with one model."""
    training, grid = run.training, run.grid
    return grid, training.cut(grid), training.batch.at_once(grid), training.mode(grid), run.config.tune_matmul


def _check_room(runs: Sequence[CheckedRun]) -> None:
    """Raise UsageError unless a step of each fits into a device's memory, beside the models of the others."""
    config = runs[0].config
    if config.device_memory is None:
        return
    needs = {model_of(run): Footprint(run.training, config.device_kind).on(run.grid) for run in runs}
    total = sum(one.state for one in needs.values()) + max(one.total - one.state for one in needs.values())
    if total > config.device_memory:
        raise UsageError(
            f"The models of {len(needs)} grids need {total / 1e9:.3g} GB on each rank, but a device has "
            f"{config.device_memory / 1e9:.3g} GB: compare fewer at a time."
        )


@dataclass(slots=True, kw_only=True)
class _Side(Side):
    """Grid."""

    schedule: StepSchedule

    def begin(self) -> bool:
        self.trainer.runner.schedule = self.schedule
        return False

    def prepare(self) -> None:
        self.trainer.comm.barrier()


def compare_grids(run: CheckedGrids, setup: ContestSetup) -> "Contest":
    """Measure every grid. Collective. Raises Diverged."""
    from engine.result.schema.contest import Contest, GridSide

    comms = {run.grid: setup.trainer.comm}
    trainers = {model_of(run): setup.trainer}
    sides = []
    for one in run.runs:
        if one.grid not in comms:
            comms[one.grid] = setup.connect(one.grid)
        if (model := model_of(one)) not in trainers:
            trainers[model] = setup.make(one.training, comms[one.grid])
        trainer = trainers[model]
        recording = trainer.recorder.new_recording()
        sides.append(_Side(name(one), trainer, recording, schedule=one.training.staged(one.grid).schedule))
    take_rounds(sides, run.rounds, setup)
    found = []
    for side, one, predicted_s in zip(sides, run.runs, run.predicted_s, strict=True):
        schedule = schedule_of(one)
        measured = GridSide(
            **side.times(sides[0]),
            grid=str(one.grid),
            micro_batch=one.training.batch.at_once(one.grid),
            schedule=None if schedule is None else str(schedule),
            tensor_mode=one.training.mode(one.grid).name,
            exposed_s=_average_exposed_s(side),
            predicted_s=predicted_s,
        )
        log.info("%-40s %8.3f s a step  %s", side.name, side.time_s, measured.over_base or "")
        found.append(measured)
    return Contest(base=sides[0].name, sides=tuple(found))


def _average_exposed_s(side: Side) -> dict[str, float]:
    """Return what a rank waits for in a step, by axis, on average. Collective."""
    import torch

    axes, steps = side.recording.axes, side.recording.steps
    own = torch.tensor([axes[axis].exposed_s if axis in axes else 0.0 for axis in Axis], dtype=torch.float64)
    means = side.trainer.comm.gather_rows(own / steps).mean(0).tolist()
    return {axis.value: seconds for axis, seconds in zip(Axis, means, strict=True) if seconds}
