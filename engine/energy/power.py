"""A thread beside the run sums samples to the joules of something that gives its power only. No torch."""

import threading
import time
from collections.abc import Callable

from engine.energy.counter import Unreadable

SAMPLE_S = 0.5


class PowerSum:
    """It sums power over time since the first sample, by the mean of each two neighbours.

    watts: raises Unreadable; a sample that did is reported by the next read(). clock: in seconds.
    """

    def __init__(self, watts: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self._watts, self._clock = watts, clock
        self._lock = threading.Lock()
        self._joules = 0.0
        self._last: tuple[float, float] | None = None
        self._failed: Unreadable | None = None
        self._ended = threading.Event()

    def begin(self) -> None:
        """Sample every SAMPLE_S seconds until end()."""
        threading.Thread(target=self._sample_until_end, name="power samples", daemon=True).start()

    def end(self) -> None:
        """Take no more samples."""
        self._ended.set()

    def read(self) -> float:
        """Give the joules up to now. Raises Unreadable."""
        self.sample()
        with self._lock:
            if self._failed is not None:
                raise self._failed
            return self._joules

    def sample(self) -> None:
        """Take one now."""
        with self._lock:
            try:
                watts = self._watts()
            except Unreadable as why:
                self._failed = self._failed or why
                return
            now_s = self._clock()
            if self._last is not None:
                before_s, before_w = self._last
                self._joules += (now_s - before_s) * (watts + before_w) / 2
            self._last = now_s, watts

    def _sample_until_end(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.sample()
