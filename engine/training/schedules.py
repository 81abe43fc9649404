"""Check what a comparison of schedules is asked to do, as far as that can be before anything starts. No torch."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, ClassVar

from cyclopts import Group, Parameter

from engine.errors import UsageError
from engine.overlap.flags import Overlap
from engine.pipeline.options import PipelineOptions, ScheduleName
from engine.pipeline.registry import AUTO, NAMES, ScheduleChoice
from engine.training.ablation import CheckedTurns, Turns, with_turns
from engine.training.checks import CheckedRun, Kind, checked
from engine.training.config import RunConfig, TrainConfig
from engine.training_record import Training

BASE: ScheduleName = "1f1b"
"""All others are compared with this schedule."""
MOST_DRAWN = 20_000
"""A result has the tasks of a step if all stages together have no more of them: nobody sees more in a picture."""
USUAL = tuple(name for name in NAMES if name != "one-by-one")
DISTURBED = Group("disturbance: what a machine may do to a pipeline", sort_key=2.7)


def parse_names(text: str) -> tuple[str, ...]:
    """Read a comma list of schedules."""
    return tuple(name.strip() for name in text.split(","))


@Parameter(name="*", group=DISTURBED)
@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """It says what is made slower on purpose, under all schedules. Raises UsageError for negative numbers."""

    slow_stage: Annotated[int | None, Parameter(metavar="STAGE")] = None
    """one that computes longer, counted from 0"""
    slow_by: float = 0.2
    """of the time of each of its tasks"""
    delays_s: Annotated[float, Parameter(name="--delays", metavar="SECONDS")] = 0.0
    """each message leaves later by a random time up to that, for which its stage waits"""

    def __post_init__(self) -> None:
        for option, number in {"--slow-by": self.slow_by, "--delays": self.delays_s}.items():
            if not (math.isfinite(number) and number >= 0):
                raise UsageError(f"{option} is a number from 0 up, but {number} was given.")


@dataclass(frozen=True, slots=True)
class CheckedSchedules(CheckedTurns):
    """It is a comparison of these schedules, BASE first. trainings: of each, which differ by the cut at most.

    drawn: whether the result has the tasks of a step of each.
    """

    kind: ClassVar[Kind] = "pipeline"
    choices: tuple[ScheduleChoice, ...] = ()
    trainings: tuple[Training, ...] = ()
    disturbance: Disturbance = Disturbance()
    drawn: bool = False

    def as_options(self) -> dict[str, Any]:
        """Give every option as it came out (CheckedRun.as_options)."""
        own = {"schedules": [str(choice) for choice in self.choices], "drawn": self.drawn}
        return CheckedTurns.as_options(self) | own | asdict(self.disturbance)


def checked_schedules(
    config: RunConfig, overlap: Overlap, names: Sequence[str], turns: Turns, disturbance: Disturbance,
    ranks: int, *, drawn: bool,
) -> tuple[CheckedSchedules, list[str]]:  # fmt: skip
    """Check the comparison of schedules of these names, or else of all that can be, with BASE; and say in a sentence
    each what is left out. Raises UsageError.
    """
    if config.pipeline.schedule != AUTO:
        raise UsageError(f"bench pipeline compares several: give --schedules {config.pipeline.schedule},... instead.")
    common = {field.name: getattr(config, field.name) for field in fields(RunConfig)}
    plain = replace(config.pipeline, schedule=BASE, pipeline_limit=None, weight_limit=None, chunks=None)
    run = checked(TrainConfig(**{**common, "pipeline": plain, "breakdown": True}, overlap=overlap), ranks)
    stages, slow = run.grid.stages, disturbance.slow_stage
    if stages == 1:
        raise UsageError("bench pipeline needs 2 stages or more: give --pipe N, and as many times the ranks.")
    if slow is not None and not 0 <= slow < stages:
        raise UsageError(f"--slow-stage {slow} is none of {stages} stages, which count from 0.")
    found, left_out = _able(run, config.pipeline, names)
    count = 3 * stages * (run.training.batch.per_rank(run.grid) // run.training.batch.at_once(run.grid))
    if drawn and count > MOST_DRAWN:
        left_out.append(f"The timeline is left out: a step has about {count:,} tasks, of which no picture tells much.")
        drawn = False
    whole = with_turns(run.config, turns, len(found))
    comparison = CheckedSchedules(
        whole, run.training, run.grid, run.dataset, pretrained=run.pretrained, turns=turns, choices=tuple(found),
        trainings=tuple(found.values()), disturbance=disturbance, drawn=drawn,
    )  # fmt: skip
    return comparison, left_out


def _able(
    run: CheckedRun, options: PipelineOptions, names: Sequence[str]
) -> tuple[dict[ScheduleChoice, Training], list[str]]:
    """Find the schedules that the stages and micro-batches allow, and what is told of others. Of names that a person
    gave, all have to be. Raises UsageError.
    """
    found: dict[ScheduleChoice, Training] = {}
    left_out = []
    for name in dict.fromkeys((BASE, *(names or USUAL))):
        training = replace(run.training, pipeline=_options(options, name))
        try:
            found.setdefault(training.staged(run.grid).choice, training)
        except UsageError as error:
            if names:
                raise
            left_out.append(f"{name} is left out. {error}")
    if len(found) == 1:
        raise UsageError(f"Schedules are compared with {BASE}: name another one with --schedules.")
    return found, left_out


def _options(options: PipelineOptions, name: str) -> PipelineOptions:
    """Give the options of one schedule: of limits and chunks those that it takes."""
    driven = name.startswith("message-driven")
    return PipelineOptions(
        schedule=name,  # type: ignore[arg-type]
        pipeline_limit=options.pipeline_limit if driven else None,
        weight_limit=options.weight_limit if name == "message-driven-zb" else None,
        chunks=options.chunks if name == "interleaved" else None,
        stages=options.stages if name != "interleaved" else None,
    )
