"""What is compared takes turns in the same processes, round by round.

So a machine that gets slower with time, or a network that is shared with other jobs, disturbs all sides alike. Every
side has had its warm-up, in which the order of gathers is learnt and buffers are allocated, before the first round.
"""

import logging
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from engine.measure.recording import Recording
from engine.progress import RENEWED
from engine.result import metrics
from engine.result.ratio import Ratio
from engine.result.schema import Iteration
from engine.training.ablation import Turns
from engine.training.iterations import Measurements, take_iteration
from engine.training.trainer import Trainer

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Side:
    """It is one of those that are compared, with its turns so far. trainer: whose steps it takes. last: its latest
    step.
    """

    name: str
    trainer: Trainer
    recording: Recording
    rounds_s: list[tuple[float, ...]] = field(default_factory=list)
    last: Iteration | None = None

    def begin(self) -> None:
        """Begin a turn: make the trainer's next steps this side's."""

    def prepare(self) -> None:
        """Do what comes before each step and isn't part of it."""

    def note(self) -> None:
        """Take note of the counted step that has just ended."""

    @property
    def medians_s(self) -> list[float]:
        """Give the median seconds of its steps, by round."""
        return [median(times) for times in self.rounds_s]

    @property
    def time_s(self) -> float:
        """Give the seconds per iteration."""
        return metrics.time_per_iteration([time_s for times in self.rounds_s for time_s in times])

    def over(self, base: "Side") -> Ratio:
        """Give its time by that of another side, paired by round."""
        return Ratio.of(metrics.paired([list(zip(self.medians_s, base.medians_s, strict=True))]))


def take_rounds(sides: Sequence[Side], turns: Turns, measurements: Measurements, *, began: float) -> None:
    """Give every side its warm-up, then its turns. Collective. measurements: each step is added to them. began: when
    the run did, on time.monotonic()'s clock. Raises Diverged.
    """
    first = sides[0].trainer
    for side in sides:
        first.recorder.clear()
        _take(side, turns.warmup, measurements, warmup=True)
        log.info("warm-up  %s", side.name, extra=RENEWED)
    drawing = random.Random(first.training.seed)
    longest_s = 0.0
    for number in range(1, turns.rounds + 1):
        begins = time.monotonic()
        if number > 1 and not first.comm.unanimous(turns.ends_in_time(begins - began, longest_s)):
            log.warning("only %d of %d rounds: another would end after --end-within", number - 1, turns.rounds)
            break
        for side in drawing.sample(sides, len(sides)):
            first.recorder.record_into(side.recording)
            times = _take(side, turns.steps, measurements, warmup=False)
            side.rounds_s.append(times)
            log.info("round %d/%d  %s  %.3f s a step", number, turns.rounds, side.name, mean(times), extra=RENEWED)
        longest_s = max(longest_s, time.monotonic() - begins)


def _take(side: Side, steps: int, measurements: Measurements, *, warmup: bool) -> tuple[float, ...]:
    """Take its next steps; give the seconds of each."""
    taken = []
    side.begin()
    for _ in range(steps):
        side.prepare()
        side.last = take_iteration(side.trainer, len(measurements.iterations), warmup=warmup)
        measurements.iterations.append(side.last)
        taken.append(side.last.time_s)
        if not warmup:
            side.note()
    return tuple(taken)
