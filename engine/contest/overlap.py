"""Contest of overlap flags: which of them gain how much over none. No torch before it is carried out.

All train the same model with the same optimizer: the flags change between steps, and numbers don't. The first step
after a switch is like any other and counts: on a virtual cluster it was 1.01 times as long as those after it (0.99 to
1.02, 142 turns).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from engine.contest.rounds import CheckedContest, Rounds, Side, take_rounds
from engine.errors import UsageError
from engine.grid import Grid
from engine.overlap.flags import Overlap, drop_useless, each_alone, flags, ladder, why_useless
from engine.training.checks import ContestSetup, RunKind, check_cache, checked, why_late
from engine.training.config import RunConfig, TrainConfig

if TYPE_CHECKING:
    from engine.overlap.schedule import GatheredMemory
    from engine.result.schema.contest import Contest, OverlapSide
    from engine.result.schema.step import Breakdown

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckedOverlaps(CheckedContest):
    """Contest of these overlaps: none first, then the others."""

    kind: ClassVar[RunKind] = "ablation"
    variants: tuple[Overlap, ...] = ()

    @property
    def overlaps(self) -> tuple[Overlap, ...]:
        """Overlaps that the run takes."""
        return self.variants

    def as_options(self) -> dict[str, Any]:
        """Return every option as it came out (CheckedRun.as_options)."""
        return CheckedContest.as_options(self) | {"variants": [str(variant) for variant in self.variants]}

    def compare(self, setup: ContestSetup) -> "Contest":
        """Measure every overlap. Collective. Raises Diverged."""
        return compare_overlaps(self.variants, self.rounds, setup)


def choose_variants(full: Overlap, asked: Sequence[Overlap]) -> list[Overlap]:
    """List the variants to compare with none: those asked for, or else the ladder up to full and each flag alone."""
    return [variant.at(full) for variant in asked] or [*ladder(full), *each_alone(full)]


def drop_incomparable(wanted: Sequence[Overlap], grid: Grid, *, checkpointed: bool) -> tuple[Overlap, ...]:
    """List none and those of these that have something to hide on the grid. Raises UsageError if none has."""
    variants = drop_useless(wanted, grid, checkpointed=checkpointed)
    if len(variants) == 1:
        raise UsageError(
            f"No overlap that was asked for has anything to hide on grid {grid}"
            f"{'' if checkpointed else ' without --checkpoint-activations'}, so there is nothing to compare: choose "
            "another grid or other flags."
        )
    return variants


def check_overlaps(
    config: RunConfig, full: Overlap, ranks: int, rounds: Rounds, asked: Sequence[Overlap]
) -> tuple[CheckedOverlaps, list[str]]:
    """Check the contest of the overlaps asked for, or else of the ladder up to full and of each of its flags alone.

    All have full's pace. Also return a sentence for each that is left out or does less than its name says. Raises
    UsageError.
    """
    run = checked(TrainConfig.of(config, overlap=full), ranks)
    training, grid, recomputes = run.training, run.grid, run.training.checkpoint_activations
    wanted = choose_variants(training.overlap, asked)
    for variant in wanted:
        check_cache(variant, training.model)
    variants = drop_incomparable(wanted, grid, checkpointed=recomputes)
    named = {flag for overlap in asked or [training.overlap] for flag in flags(overlap)}
    reasons = [why_useless(flag, grid, checkpointed=recomputes) for flag in sorted(named)]
    notices = [reason for reason in reasons if reason is not None]
    if any(variant.data for variant in variants):
        notices += why_late(training)
    return CheckedOverlaps.of(run, rounds, len(variants), variants=variants), notices


@dataclass(slots=True, kw_only=True)
class _Side(Side):
    """Overlap."""

    overlap: Overlap
    memory: "GatheredMemory | None" = None
    cached_blocks: int = 0

    def begin(self) -> bool:
        self.trainer.switch(self.overlap)
        return False

    def note(self) -> None:
        self.memory, self.cached_blocks = self.trainer.model.gathered_memory, self.trainer.model.cached_blocks


def compare_overlaps(variants: Sequence[Overlap], rounds: Rounds, setup: ContestSetup) -> "Contest":
    """Measure every variant, none first. Collective. Raises Diverged."""
    from engine.result.schema.contest import Contest, OverlapSide
    from engine.training.gathered import breakdown, collectives, timeline  # loads torch

    trainer = setup.trainer
    sides = [_Side(str(overlap), trainer, trainer.recorder.new_recording(), overlap=overlap) for overlap in variants]
    take_rounds(sides, rounds, setup)
    where = [breakdown(trainer.comm, side.recording, setup.link_bytes_per_s) for side in sides]
    none, of_none = sides[0], where[0]
    fullest = max((side.overlap for side in sides), key=lambda overlap: len(flags(overlap)))
    found = []
    for side, times in zip(sides, where, strict=True):
        assert side.last is not None
        assert side.memory is not None
        drawn = side.recording.timed and side.overlap in (none.overlap, fullest)
        measured = OverlapSide(
            **side.times(none),
            prefetch_bytes=side.memory.prefetch_bytes,
            cached_blocks=side.cached_blocks,
            cache_bytes=side.memory.cache_bytes,
            collectives=collectives(side.recording),
            breakdown=times,
            timeline=timeline(side.last, side.recording) if drawn else None,
        )
        share = _share(measured, none.time_s, of_none)
        found.append(measured.model_copy(update={"share_of_greatest_gain": share}))
        log.info("%s", _describe(found[-1]))
    return Contest(base=none.name, sides=tuple(found))


def _share(side: "OverlapSide", none_s: float, of_none: "Breakdown | None") -> float | None:
    from engine.result import metrics

    own = side.breakdown
    if side.over_base is None or own is None or of_none is None or own.bound is None or of_none.bound is None:
        return None
    return metrics.share_of_greatest_gain(side.over_base.ratio, none_s, own.bound.bound_s, of_none.bound.bound_s)


def _describe(side: "OverlapSide") -> str:
    """Write one line for a person who waits."""
    line = f"{side.name:<28} {side.time_per_iteration_s:8.3f} s a step"
    if side.over_base is not None:
        line += f"  {side.over_base} of none"
    where = side.breakdown
    if where is not None and where.share_hidden is not None:
        line += f"  {where.share_hidden:.0%} hidden"
    if where is not None and where.bound is not None:
        line += f"  {where.bound.step_by_bound:.2f} x its bound ({where.bound.by})"
    return line
