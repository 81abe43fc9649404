"""Check what an ablation of overlap is asked to do, as far as that can be before anything starts. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar

from cyclopts import Group, Parameter

from engine.errors import UsageError
from engine.grid import Grid
from engine.overlap.flags import Overlap
from engine.overlap.variants import alone, effective, flags, ladder, why_useless
from engine.training.checks import CheckedRun, Kind, check_cache, checked
from engine.training.config import RunConfig, TrainConfig
from engine.training.notices import why_late

TURNS = Group("turns: each side takes its steps in every round", sort_key=2)
OF_TRAIN_ALONE = {field.name for field in fields(TrainConfig)} - {field.name for field in fields(RunConfig)}


@Parameter(name="*", group=TURNS)
@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """They say how often each side is timed. Raises UsageError for numbers below 1."""

    rounds: int = 6
    """in each, every side has a turn, in another order"""
    steps: Annotated[int, Parameter(name="--steps-per-round")] = 2
    """of each turn"""
    warmup: int = 1
    """steps of each side before the first round"""
    end_within_s: Annotated[float | None, Parameter(name="--end-within")] = None
    """seconds from the start: no round is begun that would not be over by then, so that what is measured is kept"""

    def __post_init__(self) -> None:
        at_least_one = {"--rounds": self.rounds, "--steps-per-round": self.steps, "--warmup": self.warmup}
        for option, number in at_least_one.items():
            if number < 1:
                raise UsageError(f"{option} is at least 1, but {number} was given.")
        if self.end_within_s is not None and self.end_within_s <= 0:
            raise UsageError(f"--end-within is a number of seconds above 0, but {self.end_within_s:g} was given.")

    def ends_in_time(self, so_far_s: float, round_s: float) -> bool:
        """Say whether another round ends in time, if it takes a fifth more than round_s, the longest so far."""
        return self.end_within_s is None or so_far_s + 1.2 * round_s <= self.end_within_s


@dataclass(frozen=True, slots=True)
class CheckedTurns(CheckedRun):
    """It is a run in which several sides take turns, and has passed every check that needs no process."""

    turns: Turns = Turns()

    def as_options(self) -> dict[str, Any]:
        """Give every option as it came out (CheckedRun.as_options)."""
        options = {key: value for key, value in CheckedRun.as_options(self).items() if key not in OF_TRAIN_ALONE}
        return options | {
            "overlap": str(self.training.overlap),
            "rounds": self.turns.rounds,
            "steps_per_round": self.turns.steps,
            "warmup": self.turns.warmup,
            "end_within_s": self.turns.end_within_s,
        }


@dataclass(frozen=True, slots=True)
class CheckedAblation(CheckedTurns):
    """It is an ablation of these variants: none first, then the others."""

    kind: ClassVar[Kind] = "ablation"
    variants: tuple[Overlap, ...] = ()

    @property
    def overlaps(self) -> tuple[Overlap, ...]:
        """List the overlaps that the run takes."""
        return self.variants

    def as_options(self) -> dict[str, Any]:
        """Give every option as it came out (CheckedRun.as_options)."""
        return CheckedTurns.as_options(self) | {"variants": [str(variant) for variant in self.variants]}


def with_turns(config: TrainConfig, turns: Turns, sides: int) -> TrainConfig:
    """Give the iterations of all turns of so many sides."""
    warmup = sides * turns.warmup
    return replace(config, warmup=warmup, iterations=warmup + sides * turns.rounds * turns.steps)


def wanted_variants(full: Overlap, asked: Sequence[Overlap]) -> list[Overlap]:
    """List the variants to compare with none: those asked for, or else the ladder up to full and each flag alone."""
    return [variant.at(full) for variant in asked] or [*ladder(full), *alone(full)]


def comparable(wanted: Sequence[Overlap], grid: Grid, *, checkpointed: bool) -> tuple[Overlap, ...]:
    """List none and those of these that have something to hide on the grid. Raises UsageError if none has."""
    variants = effective(wanted, grid, checkpointed=checkpointed)
    if len(variants) == 1:
        raise UsageError(
            f"No overlap that was asked for has anything to hide on grid {grid}"
            f"{'' if checkpointed else ' without --checkpoint-activations'}, so there is nothing to compare: choose "
            "another grid or other flags."
        )
    return variants


def checked_ablation(
    config: RunConfig, full: Overlap, asked: Sequence[Overlap], turns: Turns, ranks: int
) -> CheckedAblation:
    """Check the ablation of these variants, or else of the ladder up to full and of each of its flags alone.

    All have full's pace. Raises UsageError.
    """
    run = checked(TrainConfig.of(config, overlap=full), ranks)
    wanted = wanted_variants(run.training.overlap, asked)
    for variant in wanted:
        check_cache(variant, run.training.model)
    variants = comparable(wanted, run.grid, checkpointed=run.training.checkpoint_activations)
    whole = with_turns(run.config, turns, len(variants))
    return CheckedAblation(
        whole, run.training, run.grid, run.dataset, pretrained=run.pretrained, turns=turns, variants=variants
    )


def ablation_notices(ablation: CheckedAblation, asked: Sequence[Overlap]) -> list[str]:
    """Say what is left out or does less than its name says, a sentence each."""
    training, grid = ablation.training, ablation.grid
    wanted = {flag for overlap in asked or [training.overlap] for flag in flags(overlap)}
    reasons = [why_useless(flag, grid, checkpointed=training.checkpoint_activations) for flag in sorted(wanted)]
    found = [reason for reason in reasons if reason is not None]
    if any(variant.data for variant in ablation.variants):
        found += why_late(training)
    return found
