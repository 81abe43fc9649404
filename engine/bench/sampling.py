"""All ranks take samples together, of as many calls as a clock needs, within a time that measurements share."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from statistics import median

from engine.bench.benchmark import FEWEST
from engine.bench.world import World
from engine.measure.machine import processor_s

WINDOW_S = 0.02
"""A sample lasts so long at least, and has as many calls as that takes."""
MOST_CALLS = 1000


@dataclass(frozen=True, slots=True)
class Samples:
    """They hold the seconds of a call, by so many samples of so many calls each.

    processor_s: the median of what a call takes of all ranks' processors together.
    """

    samples: int
    calls: int
    median_s: float
    low_s: float
    high_s: float
    processor_s: float


class Sampler:
    """It takes samples of so many measurements, one after another, which share the time. take() is collective."""

    def __init__(self, world: World, repeats: int, time_budget_s: float, measurements: int = 1) -> None:
        self._world, self._repeats, self._budget_s, self._left = world, repeats, time_budget_s, measurements
        self._start, self._spent_s = time.perf_counter(), 0.0

    def take(self, work: Callable[[int], float]) -> Samples:
        """Sample work(calls), which returns this rank's seconds: the slowest rank's count. A first call warms up.

        There are fewer samples than repeats where the measurement's share of the budget ends, but FEWEST at least.
        """
        end_s = self._spent_s + max(0.0, self._budget_s - self._spent_s) / self._left
        self._left -= 1
        self._sample(work, 1)
        first = self._sample(work, 1)
        calls = min(MOST_CALLS, max(1, ceil(WINDOW_S / max(first[0], 1e-9))))
        samples = [first] if calls == 1 else []
        while len(samples) < self._repeats and (len(samples) < FEWEST or self._spent_s < end_s):
            samples.append(self._sample(work, calls))
        times, processor = zip(*samples, strict=True)
        return Samples(len(times), calls, median(times), min(times), max(times), median(processor))

    def _sample(self, work: Callable[[int], float], calls: int) -> tuple[float, float]:
        """Return seconds of a call on the slowest rank, and what it takes of all ranks' processors.

        What has passed is the slowest rank's too, so that all decide alike.
        """
        self._world.comm.barrier()
        before_s = processor_s()
        own_s = work(calls)
        taken_s = processor_s() - before_s
        everyone = self._world.everyone([own_s / calls, time.perf_counter() - self._start, taken_s / calls])
        slowest = everyone.max(0).values
        self._spent_s = float(slowest[1])
        return float(slowest[0]), float(everyone[:, 2].sum())
