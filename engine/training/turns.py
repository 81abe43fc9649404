"""Variants of an ablation of overlap take turns in the same processes, with the same model and optimizer.

So a machine that gets slower with time, or a network that is shared with other jobs, disturbs all variants alike. The
flags change between steps, and numbers don't: it is one training. Every variant has had its warm-up, in which the order
of gathers is learnt and buffers are allocated, before the first round. Then the first step after a switch is like any
other and counts: on a virtual cluster it was 1.01 times as long as those after it (0.99 to 1.02, 142 turns).
"""

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from engine.measure.recording import Recording
from engine.overlap.flags import Overlap
from engine.overlap.schedule import GatheredMemory
from engine.overlap.variants import flags
from engine.progress import RENEWED
from engine.result import metrics
from engine.result.schema import Iteration, Ratio, Variant
from engine.result.step import Breakdown
from engine.training.ablation import Turns
from engine.training.gathered import breakdown, collectives, timeline
from engine.training.iterations import Measurements, take_iteration
from engine.training.trainer import Trainer

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Side:
    """It holds a variant's turns so far. last: its latest step."""

    overlap: Overlap
    recording: Recording
    rounds_s: list[tuple[float, ...]] = field(default_factory=list)
    last: Iteration | None = None
    memory: GatheredMemory | None = None
    cached_blocks: int = 0

    @property
    def medians_s(self) -> list[float]:
        """Give the median seconds of its steps, by round."""
        return [median(times) for times in self.rounds_s]

    @property
    def time_s(self) -> float:
        """Give the seconds per iteration."""
        return metrics.time_per_iteration([time_s for times in self.rounds_s for time_s in times])


def take_turns(
    trainer: Trainer,
    variants: Sequence[Overlap],
    turns: Turns,
    measurements: Measurements,
    *,
    began: float,
    link_bytes_per_s: float | None = None,
) -> tuple[Variant, ...]:
    """Measure every variant, none first. Collective. measurements: each step is added to them. began: when the run did,
    on time.monotonic()'s clock. link_bytes_per_s: of a node's network. Raises Diverged.
    """
    recorder = trainer.recorder
    sides = [_Side(overlap, recorder.new_recording()) for overlap in variants]
    for side in sides:
        recorder.clear()
        _take(trainer, side, turns.warmup, measurements, warmup=True)
        log.info("warm-up  %s", side.overlap, extra=RENEWED)
    drawing = random.Random(trainer.training.seed)
    longest_s = 0.0
    for number in range(1, turns.rounds + 1):
        begins = time.monotonic()
        if number > 1 and not trainer.comm.unanimous(turns.ends_in_time(begins - began, longest_s)):
            log.warning("only %d of %d rounds: another would end after --end-within", number - 1, turns.rounds)
            break
        for side in drawing.sample(sides, len(sides)):
            recorder.record_into(side.recording)
            times = _take(trainer, side, turns.steps, measurements, warmup=False)
            side.rounds_s.append(times)
            facts = (number, turns.rounds, side.overlap, mean(times))
            log.info("round %d/%d  %s  %.3f s a step", *facts, extra=RENEWED)
        longest_s = max(longest_s, time.monotonic() - begins)
    found = _compared(trainer, sides, link_bytes_per_s)
    for variant in found:
        log.info("%s", describe(variant))
    return found


def _take(trainer: Trainer, side: _Side, steps: int, measurements: Measurements, *, warmup: bool) -> tuple[float, ...]:
    """Take its next steps; give the seconds of each."""
    trainer.switch(side.overlap)
    taken = []
    for _ in range(steps):
        side.last = take_iteration(trainer, len(measurements.iterations), warmup=warmup)
        measurements.iterations.append(side.last)
        taken.append(side.last.time_s)
    side.memory, side.cached_blocks = trainer.model.gathered_memory, trainer.model.cached_blocks
    return tuple(taken)


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
            over_none = Ratio.of(metrics.paired([list(zip(side.medians_s, none.medians_s, strict=True))]))
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
