"""Variants of an ablation of overlap take turns in the same processes, with the same model and optimizer.

The flags change between steps, and numbers don't: it is one training. The first step after a switch is like any other
and counts: on a virtual cluster it was 1.01 times as long as those after it (0.99 to 1.02, 142 turns).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from engine.overlap.flags import Overlap
from engine.overlap.schedule import GatheredMemory
from engine.overlap.variants import flags
from engine.result import metrics
from engine.result.schema import Variant
from engine.result.step import Breakdown
from engine.training.ablation import Turns
from engine.training.gathered import breakdown, collectives, timeline
from engine.training.iterations import Measurements
from engine.training.rounds import Side, take_rounds
from engine.training.trainer import Trainer

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class _Side(Side):
    """It is a variant."""

    overlap: Overlap
    memory: GatheredMemory | None = None
    cached_blocks: int = 0

    def begin(self) -> None:
        self.trainer.switch(self.overlap)

    def note(self) -> None:
        self.memory, self.cached_blocks = self.trainer.model.gathered_memory, self.trainer.model.cached_blocks


def take_turns(
    trainer: Trainer,
    variants: Sequence[Overlap],
    turns: Turns,
    measurements: Measurements,
    *,
    began: float,
    link_bytes_per_s: float | None = None,
) -> tuple[Variant, ...]:
    """Measure every variant, none first. Collective. measurements, began: as take_rounds() takes them.
    link_bytes_per_s: of a node's network. Raises Diverged.
    """
    sides = [_Side(str(overlap), trainer, trainer.recorder.new_recording(), overlap=overlap) for overlap in variants]
    take_rounds(sides, turns, measurements, began=began)
    found = _compared(trainer, sides, link_bytes_per_s)
    for variant in found:
        log.info("%s", describe(variant))
    return found


def _compared(trainer: Trainer, sides: list[_Side], link: float | None) -> tuple[Variant, ...]:
    """Give what the sides' turns come to."""
    where = [breakdown(trainer.comm, side.recording, link) for side in sides]
    none, of_none = sides[0], where[0]
    fullest = max((side.overlap for side in sides), key=lambda overlap: len(flags(overlap)))
    variants = []
    for side, times in zip(sides, where, strict=True):
        assert side.last is not None
        assert side.memory is not None
        over_none = share = None
        if side is not none:
            over_none = side.over(none)
            share = _share(over_none.ratio, none.time_s, times, of_none)
        drawn = side.recording.timed and side.overlap in (none.overlap, fullest)
        variants.append(
            Variant(
                overlap=str(side.overlap),
                rounds_s=tuple(side.rounds_s),
                time_per_iteration_s=side.time_s,
                over_none=over_none,
                share_of_greatest_gain=share,
                prefetch_bytes=side.memory.prefetch_bytes,
                cached_blocks=side.cached_blocks,
                cache_bytes=side.memory.cache_bytes,
                collectives=collectives(side.recording),
                breakdown=times,
                timeline=timeline(side.last, side.recording) if drawn else None,
            )
        )
    return tuple(variants)


def _share(ratio: float, none_s: float, own: Breakdown | None, of_none: Breakdown | None) -> float | None:
    if own is None or of_none is None or own.bound is None or of_none.bound is None:
        return None
    return metrics.share_of_greatest_gain(ratio, none_s, own.bound.bound_s, of_none.bound.bound_s)


def describe(variant: Variant) -> str:
    """Write one line for a person who waits."""
    line = f"{variant.overlap:<28} {variant.time_per_iteration_s:8.3f} s a step"
    if variant.over_none is not None:
        line += f"  {variant.over_none} of none"
    where = variant.breakdown
    if where is not None and where.share_hidden is not None:
        line += f"  {where.share_hidden:.0%} hidden"
    if where is not None and where.bound is not None:
        line += f"  {where.bound.step_by_bound:.2f} x its bound ({where.bound.by})"
    return line
