"""Contest of a pipeline's schedules: how long a step takes, and how long each stage is idle.

Checks that need no process are here, without torch; played_schedules.py carries the contest out.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from engine.contest.rounds import CheckedContest, Disturbance, Rounds
from engine.errors import UsageError
from engine.footprint.fit import check_memory, choose_schedule
from engine.footprint.memory import Footprint
from engine.grid import Grid
from engine.loading import loading
from engine.overlap.flags import Overlap
from engine.overlap.tasks import StepSchedule
from engine.pipeline.registry import AUTO, BASE, NAMES, PipelineOptions, ScheduleChoice
from engine.training.checks import CheckedRun, ContestSetup, RunKind, checked
from engine.training.config import RunConfig, TrainConfig
from engine.training_record import Training

if TYPE_CHECKING:
    from engine.result.schema.contest import Contest

MOST_DRAWN = 20_000
"""A result has the tasks of a step if all stages together have no more of them: nobody sees more in a picture."""
USUAL = (*(name for name in NAMES if name not in ("one-by-one", "interleaved")), "interleaved", AUTO)
"""Interleaved comes late, as its model stands beside that of the others."""


def parse_names(text: str) -> tuple[str, ...]:
    """Read a comma list of schedules."""
    return tuple(name.strip() for name in text.split(","))


@dataclass(frozen=True, slots=True)
class CheckedSchedules(CheckedContest):
    """Contest of these schedules, BASE first."""

    kind: ClassVar[RunKind] = "pipeline"
    choices: tuple[ScheduleChoice, ...] = ()
    variants: tuple[Training, ...] = ()
    """Training of each, which differ by the cut at most."""
    auto: ScheduleChoice | None = None
    """The one that --schedule auto takes, if that is among them."""
    disturbance: Disturbance = Disturbance()
    drawn: bool = False
    """Whether the result has the tasks of a step of each."""

    @property
    def trainings(self) -> tuple[tuple[Training, Grid], ...]:
        """List the trainings of all schedules, each with its grid."""
        return tuple((training, self.grid) for training in self.variants)

    def as_options(self) -> dict[str, Any]:
        """Return every option as it came out (CheckedRun.as_options)."""
        own = {"schedules": [str(choice) for choice in self.choices], "drawn": self.drawn}
        return CheckedContest.as_options(self) | own | asdict(self.disturbance)

    def compare(self, setup: ContestSetup) -> "Contest":
        """Measure every schedule. Collective. Raises Diverged."""
        with loading():
            from engine.contest.played_schedules import compare_schedules

        return compare_schedules(
            self, setup, self.choices, self.variants, auto=self.auto, disturbance=self.disturbance, drawn=self.drawn
        )


def check_schedules(
    config: RunConfig,
    overlap: Overlap,
    ranks: int,
    rounds: Rounds,
    names: Sequence[str],
    disturbance: Disturbance = Disturbance(),
    *,
    drawn: bool = False,
) -> tuple[CheckedSchedules, list[str]]:
    """Check the contest of schedules of these names, or else of all that can be, with BASE.

    Also return a sentence for each that is left out. Raises UsageError.
    """
    if config.pipeline.schedule != AUTO:
        raise UsageError(
            f"--schedule {config.pipeline.schedule} names one, but bench pipeline compares several: give --schedules "
            f"{config.pipeline.schedule},... instead."
        )
    plain = replace(config.pipeline, schedule=BASE, pipeline_limit=None, weight_limit=None, chunks=None)
    run = checked(TrainConfig.of(config, pipeline=plain, breakdown=True, overlap=overlap), ranks)
    stages, slow = run.grid.stages, disturbance.slow_stage
    if stages == 1:
        raise UsageError("bench pipeline needs 2 stages or more: give --pipe N, and as many times the ranks.")
    if slow is not None and not 0 <= slow < stages:
        raise UsageError(f"--slow-stage is a stage from 0 to {stages - 1}, but {slow} was given.")
    found, auto, left_out = _possible(run, config.pipeline, names)
    count = 3 * stages * run.training.passes(run.grid)
    if drawn and count > MOST_DRAWN:
        left_out.append(f"The timeline is left out: a step has about {count:,} tasks, of which no picture tells much.")
        drawn = False
    own = {"choices": tuple(found), "variants": tuple(found.values()), "auto": auto}
    contest = CheckedSchedules.of(run, rounds, len(found), **own, disturbance=disturbance, drawn=drawn)
    return contest, left_out


def _possible(
    run: CheckedRun, options: PipelineOptions, names: Sequence[str]
) -> tuple[dict[ScheduleChoice, Training], ScheduleChoice | None, list[str]]:
    """Find the schedules that the stages, the micro-batches and a device's memory allow, the one of them that AUTO
    takes, and a sentence for each of the others. Of names that a person gave, all have to be. Raises UsageError.
    """
    found: dict[ScheduleChoice, Training] = {}
    auto: ScheduleChoice | None = None
    left_out = []
    for name in dict.fromkeys((BASE, *(names or USUAL))):
        try:
            training = replace(run.training, pipeline=_options(options, name))
            if run.config.device_memory is not None:
                training = choose_schedule(training, run.grid, run.config.device_memory, run.config.device_kind)
            staged = training.staged(run.grid)
            same = (other for other in found if _alike(other.make(), staged.schedule, run))
            choice = next(same, staged.choice)
            if choice not in found:
                training = replace(training, pipeline=choice.options(_options(options, choice.name).stages))
                _check_room(run, training, [*found.values()])
                found[choice] = training
            auto = choice if name == AUTO else auto
        except UsageError as error:
            if names:
                raise
            left_out.append(f"{name} is left out. {error}")
    if len(found) == 1:
        raise UsageError(f"Schedules are compared with {BASE}: name another one with --schedules.")
    return found, auto, left_out


def _alike(one: StepSchedule, other: StepSchedule, run: CheckedRun) -> bool:
    """Say whether two schedules do the same: of one kind, whose limits come to the same on every stage."""
    stages, passes = run.grid.stages, run.training.passes(run.grid)
    held = [[each.live_passes(stage, stages, passes) for stage in range(stages)] for each in (one, other)]
    return type(one) is type(other) and one.chunks == other.chunks and held[0] == held[1]


def _check_room(run: CheckedRun, training: Training, others: Sequence[Training]) -> None:
    """Raise UsageError unless a step fits into a device's memory, beside the models of other cuts."""
    memory, grid, device = run.config.device_memory, run.grid, run.config.device_kind
    if memory is None:
        return
    check_memory(training, grid, memory, device)
    apart = [one for one in others if one.cut(grid) != training.cut(grid)]
    if apart:
        own, *needs = (Footprint(one, device).on(grid) for one in (training, *apart))
        if max(own.total + needs[0].state, own.state + max(one.total for one in needs)) > memory:
            raise UsageError(
                f"The schedule {training.pipeline.schedule} cuts the network otherwise, and --device-memory has no "
                "room for two models: take more ranks."
            )


def _options(options: PipelineOptions, name: str) -> PipelineOptions:
    """Return the options of one schedule: of limits and chunks those that it takes."""
    driven = name.startswith("message-driven")
    return PipelineOptions(
        schedule=name,
        pipeline_limit=options.pipeline_limit if driven else None,
        weight_limit=options.weight_limit if name == "message-driven-zb" else None,
        chunks=options.chunks if name == "interleaved" else None,
        stages=options.stages if name != "interleaved" else None,
    )
