"""Check what a comparison of grids is asked to do, as far as that can be before anything starts. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from engine.errors import UsageError
from engine.footprint.memory import Footprint
from engine.grid import Grid
from engine.overlap.flags import Overlap
from engine.pipeline.options import DEFAULT
from engine.pipeline.registry import ScheduleChoice
from engine.training.ablation import CheckedTurns, Turns, with_turns
from engine.training.checks import CheckedRun, Kind, checked
from engine.training.config import RunConfig, TrainConfig

CHOICE = "GRID[,MICRO[,SCHEDULE]]"


@dataclass(frozen=True, slots=True)
class GridChoice:
    """It is a grid with what a rank takes at once, its share if None, and the schedule of its stages, if it has any."""

    grid: Grid
    micro: int | None = None
    schedule: ScheduleChoice | None = None

    @classmethod
    def parse(cls, text: str) -> "GridChoice":
        """Read a word such as 1x1x2x4 or 1x1x1x2p4,8,zero-bubble. Raises UsageError."""
        grid, micro, schedule = (*text.split(",", 2), "", "")[:3]
        try:
            return cls(
                Grid.parse(grid), int(micro) if micro else None, ScheduleChoice.parse(schedule) if schedule else None
            )
        except ValueError:
            raise UsageError(f"A grid to compare is written {CHOICE}, but {text!r} was given.") from None

    def of(self, config: TrainConfig) -> TrainConfig:
        """Give the options with this choice, in place of theirs as far as it says something."""
        batch, pipeline = config.batch, config.pipeline if self.grid.stages > 1 else DEFAULT
        return replace(
            config,
            grid=self.grid,
            pipe=None,
            batch=replace(batch, micro=batch.micro if self.micro is None else self.micro),
            pipeline=pipeline if self.schedule is None else self.schedule.options(pipeline.stages),
        )


@dataclass(frozen=True, slots=True)
class CheckedGrids(CheckedTurns):
    """It is a comparison of these runs, which differ by grid, micro-batch and schedule. predicted_s: of a step of each,
    or None.
    """

    kind: ClassVar[Kind] = "grids"
    runs: tuple[CheckedRun, ...] = ()
    predicted_s: tuple[float | None, ...] = ()

    def as_options(self) -> dict[str, Any]:
        """Give every option as it came out (CheckedRun.as_options)."""
        return CheckedTurns.as_options(self) | {"grids": [name(run) for run in self.runs]}


def name(run: CheckedRun) -> str:
    """Name a run's choice as GridChoice.parse() reads it."""
    words = [str(run.grid), str(run.training.batch.at_once(run.grid))]
    return ",".join([*words, *([str(schedule)] if (schedule := schedule_of(run)) else [])])


def schedule_of(run: CheckedRun) -> ScheduleChoice | None:
    """Give the schedule of a grid with stages."""
    return run.training.staged(run.grid).choice if run.grid.stages > 1 else None


def checked_grids(
    config: RunConfig, overlap: Overlap, choices: Mapping[GridChoice, float | None], turns: Turns, ranks: int
) -> CheckedGrids:
    """Check the comparison of these choices, the first with all others. choices: each with the seconds of a step that
    are predicted, or None. Raises UsageError.
    """
    whole = TrainConfig.of(config, breakdown=True, overlap=overlap)
    found: dict[str, tuple[CheckedRun, float | None]] = {}
    for choice, predicted_s in choices.items():
        run = checked(choice.of(whole), ranks)
        found.setdefault(name(run), (run, predicted_s))
    if len(found) < 2:
        raise UsageError(
            f"bench grids compares two or more, but was given {', '.join(found) or 'none'}: add --candidate {CHOICE}."
        )
    runs, predicted = zip(*found.values(), strict=True)
    _check_room(runs)
    first: CheckedRun = runs[0]
    return CheckedGrids(
        with_turns(first.config, turns, len(runs)), first.training, first.grid, first.dataset,
        pretrained=first.pretrained, turns=turns, runs=runs, predicted_s=predicted,
    )  # fmt: skip


def model_of(run: CheckedRun) -> tuple[Any, ...]:
    """Give what runs must have in common to take turns with one model."""
    return run.grid, run.training.cut(run.grid), run.training.batch.at_once(run.grid)


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
