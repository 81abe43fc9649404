"""Samples that all ranks take together, of as many calls as a clock needs, within a time that measurements share."""

import time
from collections.abc import Callable, Sequence
from math import ceil
from statistics import median

from engine.bench.benchmark import FEWEST
from engine.bench.world import World
from engine.measure.machine import processor_s
from engine.result.schema.bench import Sampled

WINDOW_S = 0.02
"""A sample lasts so long at least, and has as many calls as that takes."""
MOST_CALLS = 1000


class Samples(Sampled):
    """Seconds of the slowest rank, and average_s, the median of what the ranks that took part needed on
    average. processor_s: the median of what a call takes of all ranks' processors together.
    """

    average_s: float
    processor_s: float


_Sample = tuple[float, float, float]
"""Call's seconds on the slowest rank and on average, and what it takes of all ranks' processors."""


class Sampler:
    """Taker of samples of so many measurements, one after another, which share the time. Its methods are collective."""

    def __init__(self, world: World, repeats: int, time_budget_s: float, measurements: int = 1) -> None:
        self._world, self._repeats, self._budget_s, self._left = world, repeats, time_budget_s, measurements
        self._start, self._spent_s = time.perf_counter(), 0.0

    @property
    def spent(self) -> bool:
        """Say whether the time is over. All ranks say so alike."""
        return self._spent_s >= self._budget_s

    def take(self, work: Callable[[int], float]) -> Samples:
        """Sample work(calls), which returns this rank's seconds: the slowest rank's count. A first call warms up.

        There are fewer samples than repeats where the measurement's share of the budget ends, but FEWEST at least.
        """
        return self.in_turns([work])[0]

    def in_turns(self, works: Sequence[Callable[[int], float]]) -> list[Samples]:
        """Sample several, as one measurement: a sample of each, again and again, so that their ratios are fair."""
        end_s = self._spent_s + max(0.0, self._budget_s - self._spent_s) / self._left
        self._left -= 1
        turns = [self._turn(work) for work in works]
        fewest = min(len(samples) for _, _, samples in turns)
        while fewest < self._repeats and (fewest < FEWEST or self._spent_s < end_s):
            for work, calls, samples in turns:
                samples.append(self._sample(work, calls))
            fewest += 1
        return [_summed_up(calls, samples) for _, calls, samples in turns]

    def _turn(self, work: Callable[[int], float]) -> tuple[Callable[[int], float], int, list[_Sample]]:
        """Warm it up. Returns how many calls make a sample of it, and the first if one call does."""
        self._sample(work, 1)
        first = self._sample(work, 1)
        calls = min(MOST_CALLS, max(1, ceil(WINDOW_S / max(first[0], 1e-9))))
        return work, calls, [first] if calls == 1 else []

    def _sample(self, work: Callable[[int], float], calls: int) -> _Sample:
        """Take one. What has passed is the slowest rank's, too, so that all decide alike."""
        self._world.comm.barrier()
        before_s = processor_s()
        own_s = work(calls)
        taken_s = processor_s() - before_s
        everyone = self._world.gather_rows([own_s / calls, time.perf_counter() - self._start, taken_s / calls])
        slowest = everyone.max(0).values
        self._spent_s = float(slowest[1])
        calling = everyone[:, 0]
        return float(slowest[0]), float(calling[calling > 0].mean()), float(everyone[:, 2].sum())


def _summed_up(calls: int, samples: Sequence[_Sample]) -> Samples:
    slowest, average, processor = zip(*samples, strict=True)
    return Samples(
        samples=len(samples),
        calls=calls,
        median_s=median(slowest),
        low_s=min(slowest),
        high_s=max(slowest),
        average_s=median(average),
        processor_s=median(processor),
    )
